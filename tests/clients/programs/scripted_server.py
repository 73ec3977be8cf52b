"""``python -m tests.clients.programs.scripted_server``: ``python -m server`` with a scripted model, and a record.

Flags that are not its own are passed to the server.
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
    own, flags = options.parse_known_args()
    create_app = app.create_app

    def create_recorded_app(*args: Any, **kwargs: Any) -> FastAPI:
        application = create_app(*args, **kwargs)
        application.middleware_stack = Recorder(application.build_middleware_stack(), own.record)
        return application

    app.create_app = create_recorded_app
    if own.family is not None:  # otherwise a real model
        script = Script.read(own.script, family(own.family, own.templates))
        model_pool.loader_factory = cast(Any, lambda _: lambda: ScriptedLoader(script, own.context))
    return cli.main(flags)


if __name__ == "__main__":
    sys.exit(main())
