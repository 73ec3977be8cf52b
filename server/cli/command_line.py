"""The command line: ``llamapool [serve]``, ``check-config FILE``, ``fit``, ``health``, ``pull``, ``list``, ``rm``, ...

A wrong setting ends it with one line on standard error and status 2.
"""

import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
import yaml

from server import __version__, logs
from server.cli import health, key_commands, model_commands
from server.engine.instances import ENGINE_THREADS
from server.errors import MASK, ConfigError, LlamapoolError
from server.listen import check_reach, open_listeners, published
from server.options.flags import COMPLETION_FLAG, DEVICES_FLAG
from server.options.option import SettingsModel
from server.options.reference import completion, help_text, json_schema, markdown
from server.options.values import without_secrets
from server.pool.spec import ModelSpec
from server.settings import TABLE, Settings, check_files, load_settings, model_specs
from server.uvicorn_config import AdminServer, check_certificate

logger = logging.getLogger(__name__)

OK, NOT_STARTED, WRONG = 0, 1, 2
_HELP = frozenset({"-h", "--help", "--usage"})
_CACHE_LIST = frozenset({"-cl", "--cache-list"})
_ROOT = Path(__file__).resolve().parents[2]
_PREPARE_GRACE_S = 2.0  # for threads that prepare a request, after everything else has ended


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status. `argv` is the process's when None."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = COMMANDS.get(words[0]) if words else None
    try:
        if command is None or command is serve:
            return serve(words[1:] if command else words)
        try:
            status = command(words[1:])
            sys.stdout.flush()
        except BrokenPipeError:  # who reads what is printed has seen enough, as `head` has
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is written when the process ends
            return OK
        return status
    except ConfigError as error:
        print(f"llamapool: {error.message}", file=sys.stderr)
        return WRONG


def serve(words: list[str]) -> int:
    """Serve until a signal ends it. Raises ConfigError."""
    if _shown(words):
        return OK
    settings = load_settings(words)
    check_certificate(settings.server)
    warnings = [*check_reach(settings.server), *check_files(settings)]
    logs.configure(settings.server)
    for warning in warnings:
        logger.warning("%s", warning)
    with _made_for_good():
        from server.app import PREPARE_THREADS, create_app  # the whole application: not needed by the other commands
    listeners = open_listeners(settings.server)
    try:
        with _made_for_good():
            addresses = [listener.url for listener in listeners]
            app = create_app(settings, addresses=addresses, reread=partial(load_settings, words))
        config = uvicorn.Config(app, lifespan="on", log_config=None, access_log=False)
        server = _Server(config, addresses)
        with published(settings.server.address_file, listeners):
            server.run_until_signal([listener.socket for listener in listeners])
    finally:
        for listener in listeners:
            listener.close()
    status = OK if server.started else NOT_STARTED
    if any(thread.name.startswith(ENGINE_THREADS) for thread in threading.enumerate()):
        _end_now(NOT_STARTED, "a step or a media encoder hangs; the process ends without waiting for it")
    preparing = [thread for thread in threading.enumerate() if thread.name.startswith(PREPARE_THREADS)]
    for thread in preparing:
        thread.join(_PREPARE_GRACE_S / len(preparing))
    if any(thread.is_alive() for thread in preparing):
        _end_now(status, "a request is still being prepared; the process ends without waiting for it")
    return status


def _end_now(status: int, why: str) -> NoReturn:
    """End the process although threads are inside the library. Python would wait for them, or free what they use."""
    logger.warning(why)
    logging.shutdown()
    os._exit(status)


def check_config(words: list[str]) -> int:
    """Print what a file, with the environment and further flags, comes to. Raises ConfigError."""
    if _shown(words):
        return OK
    if not words or words[0].startswith("-"):
        raise ConfigError("check-config needs a file: llamapool check-config FILE")
    settings = load_settings(words[1:], config=Path(words[0]))
    check_certificate(settings.server)
    for warning in [*check_reach(settings.server), *check_files(settings, strict=True)]:
        print(f"llamapool: {warning}", file=sys.stderr)
    print(effective_yaml(settings), end="")
    for lines, _ in _fit_tables(model_specs(settings), settings):
        print("".join(f"# {line}\n" for line in lines), end="")
    return OK


def fit(words: list[str]) -> int:
    """``fit MODEL [flags]``: print what a model takes and what would fit. `MODEL` is a file, or a configured model's id
    or alias; left out, all of them. 1 where one does not fit. Raises ConfigError."""
    if _shown(words):
        return OK
    name = words.pop(0) if words and not words[0].startswith("-") else ""
    is_file = name.endswith(".gguf") or Path(name).is_file()
    settings = load_settings(["-m", name, *words] if is_file else words)
    check_files(settings)
    specs = model_specs(settings)
    if name and not is_file:
        known = [spec for spec in specs if name in (spec.id, *spec.aliases)]
        if not known:
            raise ConfigError(f"'{name}' is neither a GGUF file nor a model; known: {', '.join(s.id for s in specs)}")
        specs = known
    tables = list(_fit_tables(specs, settings))
    print("\n\n".join("\n".join(lines) for lines, _ in tables))
    return OK if all(fits for _, fits in tables) else NOT_STARTED


def _fit_tables(specs: Sequence[ModelSpec], settings: Settings) -> Iterator[tuple[list[str], bool]]:
    """Of each model the lines of its table, and whether it fits."""
    from server.app import memory_budget, native_loader  # the native library: few commands need it
    from server.cli.fit_table import fit_table

    loader = native_loader(settings.server.rpc)
    for spec in specs:
        if spec.missing:
            yield [f"{spec.id}: its files are not here yet; they are downloaded before it is loaded first"], True
        else:
            yield fit_table(loader, spec, memory_budget(settings.server))


def docs(words: list[str]) -> int:
    """``docs --write`` regenerates the reference and the schema in a checkout; ``docs`` prints the reference."""
    if words not in ([], ["--write"]):
        raise ConfigError("docs takes no argument but --write")
    if not words:
        print(markdown(TABLE), end="")
        return OK
    for path, text in reference_files().items():
        (_ROOT / path).parent.mkdir(exist_ok=True)
        (_ROOT / path).write_text(text, encoding="utf-8")
    return OK


def keys(words: list[str]) -> int:
    """Make keys, and show a file of them: see `server.cli.key_commands`. Raises ConfigError."""
    key_commands.main(words)
    return OK


def bench(words: list[str]) -> int:
    """Measure any OpenAI-compatible server: see `server.bench.command`, which has options of its own."""
    from server.bench import command

    return command.main(words)


def reference_files() -> dict[str, str]:
    """The generated files, by their path in the checkout."""
    return {"docs/configuration.md": markdown(TABLE), "config/schema.json": json_schema(Settings)}


def effective_yaml(settings: Settings) -> str:
    """What is set, by whichever source, as a YAML file that would give the same settings; keys and what addresses hold
    of passwords and tokens are masked."""
    server = _plain(settings.server)
    hidden = {"api_keys": [MASK] * len(settings.server.api_keys), "hf_token": MASK}
    server |= {name: shown for name, shown in hidden.items() if server.get(name)}
    models = {model_id: _plain(model) for model_id, model in settings.models.items()}
    for folder in ("models_dir", "models_preset"):  # their models stand under models
        server.pop(folder, None)
    return yaml.safe_dump(_masked({"server": server, "models": models}), sort_keys=False)


def _masked(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _masked(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_masked(each) for each in value]
    return without_secrets(value) if isinstance(value, str) else value


def hub_command(run: Callable[[Sequence[str]], None], words: list[str]) -> int:
    """``pull``, ``list`` and ``rm``: see `server.cli.model_commands`. 1 where it can't be done. Raises ConfigError."""
    if _HELP.intersection(words):
        print(model_commands.USAGE, end="")
        return OK
    try:
        run(words)
    except ConfigError:
        raise
    except LlamapoolError as error:
        print(f"llamapool: {error.message}", file=sys.stderr)
        return NOT_STARTED
    except KeyboardInterrupt:
        print("llamapool: stopped; what was received is kept, the next pull goes on with it", file=sys.stderr)
        return NOT_STARTED
    return OK


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "serve": serve,
    "check-config": check_config,
    "fit": fit,
    "health": health.main,
    "pull": partial(hub_command, model_commands.pull),
    "list": partial(hub_command, model_commands.show_list),
    "rm": partial(hub_command, model_commands.remove),
    "keys": keys,
    "bench": bench,
    "docs": docs,
}


@contextmanager
def _made_for_good() -> Iterator[None]:
    """What is made inside lives as long as the process, so the garbage collector need not look at it: not now, when
    imports make no garbage, and not in later full passes, which would hold up every thread for 50 ms."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


class _Server(AdminServer):
    """uvicorn's, saying where it listens; by itself it does not when the sockets are given."""

    def __init__(self, config: uvicorn.Config, addresses: list[str]) -> None:
        super().__init__(config)
        self._addresses = addresses

    def run_until_signal(self, sockets: list[socket.socket]) -> None:
        """Serve; return on SIGINT and SIGTERM, which uvicorn would raise once more after a clean end."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)
        self.run(sockets=sockets)

    def _stop(self, *_: object) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the application, then listen."""
        await super().startup(sockets)
        for address in self._addresses:
            logger.info("listening on %s", address)


def _plain(model: SettingsModel) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_unset=True)


def _shown(words: Sequence[str]) -> bool:
    """Print --help, --version, --cache-list, --completion-bash or --list-devices when asked for."""
    if _HELP.intersection(words):
        print(help_text(TABLE), end="")
        return True
    if "--version" in words:
        from importlib.metadata import version  # of the standard library, and slow: email is part of it

        print(f"llamapool {__version__} (llama-cpp-python {version('llama-cpp-python')})")
        return True
    if _CACHE_LIST.intersection(words):
        model_commands.show_list([])
        return True
    if COMPLETION_FLAG in words:
        print(completion(TABLE, COMMANDS), end="")
        return True
    if DEVICES_FLAG in words:
        from server.llama.devices import device_list  # the native library: no other command than serve needs it

        print(device_list(), end="")
        return True
    return False


if __name__ == "__main__":
    sys.exit(main())
