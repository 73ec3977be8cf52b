"""The choice of a model's loader: the server's own, or a worker process. See `Loaders`."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from server.errors import LlamapoolError
from server.pool.entry import Entry
from server.pool.memory import Memory
from server.pool.protocols import Loader
from server.pool.spec import ModelSpec
from server.pool.worker.parent import WorkerProcess

log = logging.getLogger(__name__)

WAIT_FOR_LOAD_S = 30.0
"""Seconds that a process waits for the load of a model after it has measured it."""
ENDED_S = 5.0
"""Seconds that killed processes may take to end; only a process that hangs in the kernel takes longer."""


class Loaders:
    """The server's own loader, and worker processes while they measure and load. Used on the event loop."""

    def __init__(self, local: Loader, in_process: Callable[[], Loader]) -> None:
        self.local = local
        self._in_process = in_process
        self._processes: dict[WorkerProcess, ModelSpec | None] = {}  # running; the measured model whose load it awaits
        self._closed = False

    def isolates(self, spec: ModelSpec) -> bool:
        """Return whether a model runs in a worker process; for ``auto``, if devices besides the CPU compute."""
        if spec.isolation == "auto":
            return self.local.uses_devices(spec)
        return spec.isolation == "process"

    def of(self, spec: ModelSpec) -> Loader:
        """Return the loader of a model: the process that has measured it and waits for the load, or a new one."""
        if not self.isolates(spec):
            return self.local
        for process, measured in self._processes.items():
            if measured is not None and process.name == spec.id:
                self._processes[process] = None
                if measured == spec and not process.kill_reason:
                    return process
                process.abandon()
        process = WorkerProcess(spec.id, self._in_process, self.local)
        self._processes[process] = None
        process.ended.add_done_callback(lambda _: self._processes.pop(process))
        return process

    def keep(self, spec: ModelSpec, loader: Loader) -> None:
        """Let a process that has measured a model wait for its load, which usually follows immediately."""
        if isinstance(loader, WorkerProcess) and loader in self._processes:
            self._processes[loader] = spec
            asyncio.get_running_loop().call_later(0 if self._closed else WAIT_FOR_LOAD_S, self._give_up, loader)

    def _give_up(self, process: WorkerProcess) -> None:
        """End a process that still waits for its load."""
        if self._processes.get(process) is not None:
            self._processes[process] = None  # `of` no longer returns it; it is killed asynchronously
            process.abandon()

    def abandon(self, loader: Loader) -> None:
        """Kill the process of a loader that has failed or is no longer needed."""
        if isinstance(loader, WorkerProcess):
            loader.abandon()

    async def memory(self, entries: Sequence[Entry]) -> Mapping[str, Memory]:
        """Return the current memory of the machine and its devices. Empty if no process can read it.

        If an isolated model uses a device, the process of a loaded model reads it: reading a GPU's memory opens a
        context on it, which would stay open in the server until it exits, and which a device error breaks.
        """
        isolated = [e for e in entries if self.isolates(e.spec) and self.local.uses_devices(e.spec)]
        if not isolated:
            return await asyncio.to_thread(self.local.memory)
        loaded = [entry.loaded.weights for entry in isolated if entry.loaded is not None]
        process = next((weights for weights in loaded if isinstance(weights, WorkerProcess)), None)
        try:
            return {} if process is None else dict(await process.call("loader", "memory"))
        except LlamapoolError as error:
            log.warning("the memory of devices can't be read: %s", error)
            return {}

    def check_progress(self, limit_s: float) -> None:
        """End processes that are silent or make no progress. Call it periodically."""
        for process in self._processes:
            process.check_progress(limit_s)

    def stop(self) -> None:
        """Stop measurements and loads, which may hang, and let no more processes wait for a load."""
        self._closed = True
        for process in self._processes:
            if not process.is_loaded:
                process.abandon()

    async def close(self) -> None:
        """Wait for abandoned processes to end."""
        if self._processes:
            await asyncio.wait([process.ended for process in self._processes], timeout=ENDED_S)
