"""Downloads of models whose files are missing: in threads, visible to all clients, stoppable."""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from server.errors import LlamapoolError
from server.pool.events import DownloadProgress, FanOut
from server.pool.protocols import Fetcher, FileProgress
from server.pool.state import Status

if TYPE_CHECKING:
    from server.pool.entry import Entry
    from server.pool.lifecycle import Lifecycle


log = logging.getLogger(__name__)

N_THREADS = 4  # downloads at a time


@dataclass(slots=True)
class Download:
    """One download of one model's files. `cancel` from anywhere."""

    files: dict[str, FileProgress] = field(default_factory=dict)  # by address; changed on the event loop
    _cancelled: threading.Event = field(default_factory=threading.Event)

    @property
    def cancelled(self) -> bool:
        """Whether its result is no longer wanted."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Stop it at its next bytes."""
        self._cancelled.set()

    def wanted(self) -> bool:
        """The opposite, for the fetcher."""
        return not self._cancelled.is_set()


class Downloads:
    """Moves one entry at a time through DOWNLOADING."""

    def __init__(self, fetcher: Fetcher, fan_out: FanOut, lifecycle: "Lifecycle") -> None:
        self._fetcher = fetcher
        self._fan_out = fan_out
        self._lifecycle = lifecycle
        self._threads = ThreadPoolExecutor(N_THREADS, thread_name_prefix="download")

    def begin(self, entry: "Entry") -> None:
        """Announce a download; `run` must follow."""
        entry.download = Download()
        entry.failure = ""
        log.info("model '%s': its files are not here; they are fetched", entry.id)
        self._lifecycle.move(entry, Status.DOWNLOADING)

    async def run(self, entry: "Entry") -> bool:
        """Fetch; the entry ends UNLOADED with its files known (True), FAILED with the reason, or UNLOADED when the
        download was cancelled."""
        download = entry.download
        assert download is not None
        loop = asyncio.get_running_loop()

        def report(progress: FileProgress) -> None:
            loop.call_soon_threadsafe(self._progressed, entry, download, progress)

        work = partial(self._fetcher.fetch, entry.spec, report, download.wanted)
        try:
            spec = await loop.run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            download.cancel()
            raise
        except Exception as error:  # noqa: BLE001 (it is the model's failure, and logged)
            entry.download = None
            self._not_there(entry, download, error)
            return False
        entry.download = None
        entry.spec, entry.described, entry.need, entry.fit = spec, None, None, None
        log.info("the files of model '%s' are there: %s", entry.id, spec.path)
        self._lifecycle.move(entry, Status.UNLOADED)
        return True

    def _not_there(self, entry: "Entry", download: Download, error: Exception) -> None:
        if download.cancelled:
            log.info("the download of model '%s' was cancelled", entry.id)
            self._lifecycle.move(entry, Status.UNLOADED)
            return
        expected = isinstance(error, LlamapoolError)
        log.error(
            "model '%s' could not be downloaded; loading it again tries once more: %s",
            entry.id,
            error,
            exc_info=None if expected else error,
        )
        reason = error.message if isinstance(error, LlamapoolError) else f"{type(error).__name__}: {error}"
        self._lifecycle.fail(entry, reason)

    def _progressed(self, entry: "Entry", download: Download, progress: FileProgress) -> None:
        if entry.download is download and not download.cancelled:
            download.files[progress.url] = progress
            self._fan_out.publish(DownloadProgress(entry.id, tuple(download.files.values())))

    def close(self) -> None:
        """Refuse further downloads."""
        self._threads.shutdown(wait=False)
