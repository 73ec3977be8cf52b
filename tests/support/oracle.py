"""The real llama-server as an oracle: `oracle(model)` starts it in a process of its own.

It comes in the development-only wheel ``xllamacpp``: llama.cpp's server code linked into an extension module, which
takes llama.cpp's ``common_params`` as attributes where llama-server takes flags (``n_ctx`` is ``-c``, ``n_parallel``
``-np``, ``cpuparams.n_threads`` ``-t``, ``sampling.temp`` ``--temp`` ...). Its release number is llama.cpp's date and
build number; the wheel itself does not know its commit (``BUILD_INFO``), and it is newer than the library that
Llamapool is pinned to. Its destructor waits for open connections without a limit, so it is ended by a signal.

Run as a module it is the child: ``python -m tests.support.oracle '{"model.path": "x.gguf", "port": 8081}'``.
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
    """llama-server on `model`; `params` sets any other attribute of ``common_params`` by its dotted name."""
    port = free_port()
    chosen: dict[str, Value] = {
        "model.path": str(model),
        "hostnames": ["127.0.0.1"],
        "port": port,
        "n_ctx": n_ctx,
        "n_parallel": n_parallel,
        "cpuparams.n_threads": n_threads,
        "cpuparams_batch.n_threads": n_threads,
        "endpoint_metrics": True,
        "fit_params": False,  # take the context as asked, whatever memory is free
        **(params or {}),
    }
    if alias:
        chosen["model_alias"] = [alias]
    return RealServer(
        [sys.executable, "-m", "tests.support.oracle", json.dumps(chosen)], port, environment, ends_with=-signal.SIGTERM
    )


def _serve(chosen: Mapping[str, Any]) -> None:
    xllamacpp = importlib.import_module("xllamacpp")  # 100 MB of native code, without types: only in the child
    params = xllamacpp.CommonParams()
    for name, value in chosen.items():
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
    server = xllamacpp.Server(params)  # loads the model, then listens on threads of its own
    print(f"listening on {server.listening_address}", flush=True)
    sys.stdin.read()  # until the parent closes the pipe or dies
    signal.raise_signal(signal.SIGTERM)  # ends as with the parent's signal, whichever comes first


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
