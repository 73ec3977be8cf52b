"""``llamapool doctor``: check the requirements of a server before its start, and name remedies."""

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from server import __version__
from server.errors import ConfigError, LlamapoolError, ModelFailed
from server.listen import check_reach, open_listeners
from server.pool.memory import HOST, readable
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec
from server.sandbox import seccomp
from server.settings import Settings, check_files, load_settings, model_specs
from server.uvicorn_config import check_certificate

USAGE = """llamapool doctor [flags]

Check the library, the CPU, the sandbox, the memory, the configuration, the port, and each model's files, memory and
chat template. The flags are those of llamapool serve. Exit status: 0 = the server can start, 1 = a check failed."""
_CPU_FEATURES = {
    "avx": "AVX",
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
}  # /proc/cpuinfo: library
_BUILD = "build it here: pip install --force-reinstall --no-binary llama-cpp-python llama-cpp-python"
_MIN_FREE = 1 << 30  # bytes


Finding = tuple[Literal["ok", "warn", "fail"], str, str]
"""Status, name of the check, and the finding, with a remedy unless the status is ok."""


def main(argv: Sequence[str]) -> int:
    """Print the findings; return 1 if a check failed."""
    if {"-h", "--help", "--usage"}.intersection(argv):
        print(USAGE)
        return 0
    failed = False
    for status, check, text in findings(argv):
        print(f"{status:4}  {check:14} {text}", flush=True)
        failed |= status == "fail"
    return int(failed)


def findings(argv: Sequence[str]) -> Iterator[Finding]:
    """Yield the findings for a server that would start with these flags."""
    yield ("ok", "version", f"Llamapool {__version__}, llama-cpp-python {version('llama-cpp-python')}")
    yield from _cpu()
    problem = seccomp.problem()
    yield ("warn" if problem else "ok", "sandbox", problem or "system calls are filtered")
    from server.app import check_parts

    try:
        settings = load_settings(argv)
        warnings = [*check_reach(settings.server), *check_files(settings)]
        check_certificate(settings.server)
        check_parts(settings.server)
    except ConfigError as error:
        yield ("fail", "configuration", error.message)
        return
    yield ("ok", "configuration", str(settings.config_path or "flags and environment"))
    for warning in warnings:
        yield ("warn", "configuration", warning)
    yield _port(settings)
    yield _keys(settings)
    yield from _models(settings)


def _cpu() -> Iterator[Finding]:
    from server.llama.library import system_info

    info = system_info()
    with contextlib.suppress(OSError):
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
        unused = [name for flag, name in _CPU_FEATURES.items() if flag in flags and f"{name} = 1" not in info]
        if unused:
            yield ("warn", "CPU", f"the library was built without {', '.join(unused)}, which this CPU has; {_BUILD}")
            return
    used = ", ".join(re.findall(r"(\w+) = 1", info))
    yield ("ok", "CPU", f"{os.cpu_count()} threads; the library uses {used}")


def _port(settings: Settings) -> Finding:
    try:
        listeners = open_listeners(settings.server)
    except ConfigError as error:
        return ("fail", "port", error.message)
    for listener in listeners:
        listener.close()
    return ("ok", "port", f"{', '.join(listener.url for listener in listeners)} is free")


def _keys(settings: Settings) -> Finding:
    file = settings.server.keys_file
    if file is not None:
        return ("ok", "keys", str(file))
    n_keys = len(settings.server.all_api_keys())
    return ("ok", "keys", f"{n_keys} API keys" if n_keys else "no API key: every client that connects is served")


def _models(settings: Settings) -> Iterator[Finding]:
    from server.llama.loader import open_loader
    from server.llama.weights.adapters import adapter_problem

    loader = open_loader(settings.server.rpc)
    memory = loader.memory()
    for name, now in memory.items():
        free = f"{readable(now.free)} of {readable(now.total)} free"
        is_low = name == HOST and now.free < _MIN_FREE
        yield ("warn" if is_low else "ok", f"memory {name}", f"{free}; end other programs" if is_low else free)
    specs = model_specs(settings)
    if not specs:
        yield ("warn", "models", "none configured or cached; run llamapool pull OWNER/NAME[:QUANT]")
    limits = settings.server.budget.limits(memory)
    for spec in specs:
        if spec.missing:
            yield ("warn", f"model {spec.id}", "not downloaded yet; run llamapool pull, or wait at the first load")
            continue
        try:
            fit = loader.fit(spec, limits)
            template = _template(loader, spec)
            if spec.native.lora and (problem := adapter_problem(spec)):
                raise ModelFailed(spec.id, f"lora: {problem}")
        except LlamapoolError as error:
            yield ("fail", f"model {spec.id}", f"{error.message}; see llamapool fit {spec.id}")
            continue
        taken = sum(each.total for each in (fit.footprint or {}).values())
        notes = "".join(f"; {note}" for note in fit.notes)
        yield ("ok", f"model {spec.id}", f"needs {readable(taken)}{template}{notes}")


def _template(loader: Loader, spec: ModelSpec) -> str:
    """Return a note about the chat template, or "". Raises LlamapoolError if it does not compile."""
    from server.pool.loading import chat_template
    from server.templates.isolated import IsolatedRenderer

    info = loader.describe(spec)
    if not info.generates:
        return ""
    if not (info.chat_template or spec.chat.template):
        return "; no chat template: set chat_template for chats"
    with contextlib.closing(IsolatedRenderer()) as renderer:
        template = chat_template(info, spec, renderer)
        return (
            f"; tool calls in the format {template.chat_format().tool_format.name}" if template.supports_tools else ""
        )
