"""Files that are read again when they change."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

Stamp = tuple[int, int, int]


async def follow_files(paths: Sequence[Path], changed: Callable[[], None], every_s: float) -> None:
    """Call `changed` each time that one of the files is another one or has other content. Endless.

    They are looked at every `every_s` seconds: links, mounted folders and ConfigMaps tell nobody of a change.
    """
    before = await asyncio.to_thread(_stamps, paths)
    while True:
        await asyncio.sleep(every_s)
        now = await asyncio.to_thread(_stamps, paths)
        if now != before:
            before = now
            changed()


def _stamps(paths: Sequence[Path]) -> list[Stamp | None]:
    return [_stamp(path) for path in paths]


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
