"""``python -m tests.clients.programs.scripted_server`` is ``python -m server`` over a scripted model.

It reads the flags of its own and hands the others to the server's own command line.
"""

import argparse
import sys
from pathlib import Path
from typing import Any, cast

from fastapi import FastAPI

from server import app, cli, model_pool
from tests.clients.programs.families import family
from tests.clients.programs.recording import Recorder
from tests.clients.programs.scripted_model import Script, ScriptedLoader


def main() -> int:
    options = argparse.ArgumentParser(allow_abbrev=False)
    options.add_argument("--family")
    options.add_argument("--templates", type=Path)
    options.add_argument("--script", type=Path)
    options.add_argument("--record", type=Path, required=True)
    options.add_argument("--context", type=int, default=1 << 17)
    own, words = options.parse_known_args()
    make = app.create_app

    def recorded(*given: Any, **named: Any) -> FastAPI:
        made = make(*given, **named)
        made.middleware_stack = Recorder(made.build_middleware_stack(), own.record)
        return made

    app.create_app = recorded
    if own.family is not None:  # else: a real model, recorded
        script = Script.read(own.script, family(own.family, own.templates))
        model_pool.loader_factory = cast(Any, lambda _: lambda: ScriptedLoader(script, own.context))
    return cli.main(words)


if __name__ == "__main__":
    sys.exit(main())
