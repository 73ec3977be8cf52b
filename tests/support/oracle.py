"""The real llama-server as an oracle: `oracle(model)` starts it as a process.

The development-only wheel ``xllamacpp`` contains it: llama.cpp's server code linked into an extension module. It takes
llama.cpp's ``common_params`` as attributes instead of flags: ``n_ctx`` for ``-c``, ``n_parallel`` for ``-np``,
``cpuparams.n_threads`` for ``-t``, ``sampling.temp`` for ``--temp`` and so on. Its release number is llama.cpp's date
and build number. It does not contain its commit (``BUILD_INFO``), and is newer than the library that Llamapool pins.
Its destructor waits for open connections without a limit, so a signal ends it.

The process runs ``python -m tests.support.oracle '{"model.path": "x.gguf", "port": 8081}'``.
"""

import importlib
import json
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.real_server import RealServer, free_port

Value = bool | int | float | str | list[str]


def oracle(
    model: Path,
    *,
    n_ctx: int = 0,
    n_parallel: int = 1,
    n_threads: int = -1,
    alias: str = "",
    params: Mapping[str, Value] | None = None,
    environment: Mapping[str, str] | None = None,
) -> RealServer:
    """Start llama-server with `model`. `params` sets other attributes of ``common_params`` by their dotted names."""
    port = free_port()
    settings: dict[str, Value] = {
        "model.path": str(model),
        "hostnames": ["127.0.0.1"],
        "port": port,
        "n_ctx": n_ctx,
        "n_parallel": n_parallel,
        "cpuparams.n_threads": n_threads,
        "cpuparams_batch.n_threads": n_threads,
        "endpoint_metrics": True,
        "fit_params": False,  # do not reduce the context to the free memory
        **(params or {}),
    }
    if alias:
        settings["model_alias"] = [alias]
    command = [sys.executable, "-m", "tests.support.oracle", json.dumps(settings)]
    return RealServer(command, port, environment, ends_with=-signal.SIGTERM)


def _serve(settings: Mapping[str, Any]) -> None:
    xllamacpp = importlib.import_module("xllamacpp")  # 100 MB of native code, without types: only in this process
    params = xllamacpp.CommonParams()
    for name, value in settings.items():
        *path, attribute = name.split(".")
        target = params
        for part in path:
            target = getattr(target, part)
        if attribute == "model_alias":
            value = set(value)
        elif attribute == "lora_adapters":  # file names, each at its full scale
            value = [xllamacpp.CommonAdapterLoraInfo(path, 1.0) for path in value]
        elif name == "speculative.types":
            kinds = xllamacpp.common_speculative_type
            value = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{kind.upper().replace('-', '_')}") for kind in value]
        elif attribute == "grammar":
            value = xllamacpp.CommonGrammar(1, value)  # COMMON_GRAMMAR_TYPE_USER
        elif attribute == "pooling_type":
            value = xllamacpp.llama_pooling_type(value)
        setattr(target, attribute, value)
    server = xllamacpp.Server(params)  # loads the model, then listens on its own threads
    print(f"listening on {server.listening_address}", flush=True)
    sys.stdin.read()  # until the parent closes the pipe or exits
    signal.raise_signal(signal.SIGTERM)  # the same end as by the parent's signal


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
