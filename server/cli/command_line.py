"""The command line: ``llamapool [serve]``, ``check-config FILE``, ``fit``, ``health``, ``pull``, ``list``, ``rm``, ...

An invalid setting ends the command with one line on standard error and exit status 2.
"""

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import uvicorn
import yaml

from server import __version__, logs
from server.cli import health
from server.engine.instances import ENGINE_THREADS
from server.errors import MASK, ConfigError, LlamapoolError
from server.listen import Listener, check_reach, open_listeners, published
from server.options.flags import COMPLETION_FLAG, DEVICES_FLAG
from server.options.table import TABLE
from server.options.values import without_secrets
from server.pool.spec import ModelSpec
from server.settings import Settings, check_files, load_settings, model_specs
from server.uvicorn_config import AdminServer, check_certificate

if TYPE_CHECKING:
    from server.model_pool import ModelPool
    from server.telemetry.kv_events import KvEvents
    from server.telemetry.tracing import Tracing

logger = logging.getLogger(__name__)

OK, NOT_STARTED, WRONG, INTERRUPTED = 0, 1, 2, 130
_HELP = frozenset({"-h", "--help", "--usage"})
_CACHE_LIST = frozenset({"-cl", "--cache-list"})
_PREPARE_GRACE_S = 2.0  # for threads that prepare a request, at the end of the shutdown


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. `argv` None = the process's arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(arguments[0]) if arguments else None
    try:
        status = command(arguments[1:]) if command else serve(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for the output that is flushed at exit
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except LlamapoolError as error:
        print(f"llamapool: {error.message}", file=sys.stderr)
        return WRONG if isinstance(error, ConfigError) else NOT_STARTED


def serve(arguments: list[str]) -> int:
    """Serve until a signal stops the server. Raises ConfigError."""
    if _print_information(arguments):
        return OK
    settings = load_settings(arguments)
    check_certificate(settings.server)
    warnings = [*check_reach(settings.server), *check_files(settings)]
    logs.configure(settings.server)
    for warning in warnings:
        logger.warning("%s", warning)
    listeners = open_listeners(settings.server)
    try:
        loop_factory = uvicorn.Config(serve, log_config=None).get_loop_factory()
        with published(settings.server.address_file, listeners), asyncio.Runner(loop_factory=loop_factory) as runner:
            started = runner.run(_serve(settings, listeners, arguments))
    except BrokenPipeError as error:  # `main` takes it for a closed pipe of standard output
        raise RuntimeError("the server has failed") from error
    finally:
        for listener in listeners:
            listener.close()
    from server.app import PREPARE_THREADS

    status = OK if started else NOT_STARTED
    if any(thread.name.startswith(ENGINE_THREADS) for thread in threading.enumerate()):
        _exit_now(NOT_STARTED, "a step or a media encoder does not end; exiting without waiting for it")
    preparing = [thread for thread in threading.enumerate() if thread.name.startswith(PREPARE_THREADS)]
    for thread in preparing:
        thread.join(_PREPARE_GRACE_S / len(preparing))
    if any(thread.is_alive() for thread in preparing):
        _exit_now(status, "a request is still being prepared; exiting without waiting for it")
    return status


async def _serve(settings: Settings, listeners: Sequence[Listener], arguments: list[str]) -> bool:
    """Load models while the application is imported, then serve until a signal. Return whether it served."""
    events = tracing = None
    if settings.server.kv_events or settings.server.otel:  # their errors end the start before models are loaded
        from server.app import kv_events_of, tracing_of

        tracing, events = tracing_of(settings.server), kv_events_of(settings.server)
    from server.model_pool import open_pool  # imports the native library, which few commands need

    reread = partial(load_settings, arguments)
    models = open_pool(settings, reread=reread)
    await models.pool.start()
    addresses = [listener.url for listener in listeners]
    try:
        server = await asyncio.to_thread(_create_server, settings, addresses, reread, models, events, tracing)
        await server.serve_until_signal([listener.socket for listener in listeners])
    finally:  # also if the application could not be created or started
        await models.pool.close(0.0)
        models.close_sandboxes()
    return server.started


def _create_server(
    settings: Settings,
    addresses: list[str],
    reread: Callable[[], Settings],
    models: "ModelPool",
    events: "KvEvents | None",
    tracing: "Tracing | None",
) -> AdminServer:
    with _permanent_objects():
        from server.app import create_app  # the HTTP application, which only `serve` needs

        app = create_app(settings, addresses=addresses, reread=reread, models=models, events=events, tracing=tracing)
        config = uvicorn.Config(app, lifespan="on", log_config=None, access_log=False)
        config.load()
    return AdminServer(config, addresses)


def _exit_now(status: int, reason: str) -> NoReturn:
    """Exit while threads still run native code. Python's own exit would wait for them or free objects that they use."""
    logger.warning(reason)
    logging.shutdown()
    os._exit(status)


def check_config(arguments: list[str]) -> int:
    """Print the settings that a file, the environment and flags result in. Raises ConfigError."""
    if _print_information(arguments):
        return OK
    if not arguments or arguments[0].startswith("-"):
        raise ConfigError("check-config needs a file: llamapool check-config FILE")
    from server.app import check_parts

    settings = load_settings(arguments[1:], config=Path(arguments[0]))
    check_certificate(settings.server)
    check_parts(settings.server)
    for warning in [*check_reach(settings.server), *check_files(settings, strict=True)]:
        print(f"llamapool: {warning}", file=sys.stderr)
    print(effective_yaml(settings), end="")
    for lines, _ in _fit_tables(model_specs(settings), settings):
        print("".join(f"# {line}\n" for line in lines), end="")
    return OK


def fit(arguments: list[str]) -> int:
    """Print the memory use of a model and the context that would fit; without `MODEL`, of all models.

    `MODEL` is a file, or a configured model's id or alias. Return 1 if a model does not fit. Raises ConfigError.
    """
    if _print_information(arguments):
        return OK
    name = arguments.pop(0) if arguments and not arguments[0].startswith("-") else ""
    is_file = name.endswith(".gguf") or Path(name).is_file()
    settings = load_settings(["-m", name, *arguments] if is_file else arguments)
    check_files(settings)
    specs = model_specs(settings)
    if name and not is_file:
        known = [spec for spec in specs if name in (spec.id, *spec.aliases)]
        if not known:
            ids = ", ".join(spec.id for spec in specs) or "none"
            raise ConfigError(f"'{name}' is neither a GGUF file nor a configured model; known: {ids}")
        specs = known
    tables = list(_fit_tables(specs, settings))
    print("\n\n".join("\n".join(lines) for lines, _ in tables))
    return OK if all(fits for _, fits in tables) else NOT_STARTED


def _fit_tables(specs: Sequence[ModelSpec], settings: Settings) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines of each model's table, and whether the model fits."""
    from server.cli.fit_table import fit_table
    from server.llama.loader import open_loader  # imports the native library

    loader = open_loader(settings.server.rpc)
    for spec in specs:
        if spec.missing:
            yield [f"{spec.id}: not downloaded yet; run llamapool pull, or load the model"], True
        else:
            yield fit_table(loader, spec, settings.server.budget)


def run_module(module: str, arguments: list[str]) -> int:
    """Run the `main` of a module that other commands do not need. Raises LlamapoolError."""
    status: int = import_module(module).main(arguments)
    return status


def effective_yaml(settings: Settings) -> str:
    """Return all values that a source sets, as a YAML file. Secrets, and passwords in URLs, are masked."""
    server = {
        key: _masked(value, is_secret=TABLE.entries["server", key].secret and not isinstance(value, dict))
        for key, value in settings.server.model_dump(mode="json", exclude_unset=True).items()
        if key not in ("models_dir", "models_preset")  # `models` contains their models
    }
    models = {
        model_id: _masked(model.model_dump(mode="json", exclude_unset=True))
        for model_id, model in settings.models.items()
    }
    return yaml.safe_dump({"server": server, "models": models}, sort_keys=False)


def _masked(value: Any, *, is_secret: bool = False) -> Any:
    if isinstance(value, dict):  # env and headers of MCP servers contain tokens
        return {key: _masked(each, is_secret=is_secret or key in ("env", "headers")) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(each, is_secret=is_secret) for each in value]
    if not isinstance(value, str) or not value:
        return value
    return MASK if is_secret else without_secrets(value)


def hub_command(name: str, arguments: list[str]) -> int:
    """Run ``pull``, ``list`` or ``rm``. Raises LlamapoolError if the hub or the disk fails."""
    from server.cli import model_commands  # imports tqdm, which `serve` does not need

    if _HELP.intersection(arguments):
        print(model_commands.USAGE, end="")
        return OK
    try:
        {"pull": model_commands.pull, "list": model_commands.show_list, "rm": model_commands.remove}[name](arguments)
    except KeyboardInterrupt:
        print("llamapool: interrupted; run the command again to continue the download", file=sys.stderr)
        return NOT_STARTED
    return OK


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": serve,
    "check-config": check_config,
    "fit": fit,
    "health": health.main,
    **{name: partial(hub_command, name) for name in ("pull", "list", "rm")},
    "keys": partial(run_module, "server.cli.key_commands"),
    "bench": partial(run_module, "server.bench.command"),
    **{name: partial(run_module, f"server.cli.{name}") for name in ("chat", "docs", "doctor", "launch")},
}


@contextmanager
def _permanent_objects() -> Iterator[None]:
    """Exclude objects created in the block from garbage collection, since they live as long as the process.

    Imports create no garbage, and later full collections would pause all threads for 50 ms longer.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _print_information(arguments: Sequence[str]) -> bool:
    """Handle --help, --version, --cache-list, --completion-bash and --list-devices. Return whether one was given."""
    if _HELP.intersection(arguments):
        from server.options.reference import help_text  # imports argparse, which `serve` does not need

        print(help_text(), end="")
        return True
    if "--version" in arguments:
        from importlib.metadata import version  # slow: it imports email

        print(f"llamapool {__version__} (llama-cpp-python {version('llama-cpp-python')})")
        return True
    if _CACHE_LIST.intersection(arguments):
        hub_command("list", [])
        return True
    if COMPLETION_FLAG in arguments:
        from server.options.reference import completion

        print(completion(COMMANDS), end="")
        return True
    if DEVICES_FLAG in arguments:
        from server.llama.devices import device_list  # imports the native library

        print(device_list(), end="")
        return True
    return False
