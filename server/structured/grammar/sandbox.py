"""Compiles grammars in a sandboxed process first. A grammar that takes too much costs that process and nothing else.

llguidance intersects schemas without a bound: two kilobytes of `oneOf` and `allOf` can take all memory. What the
sandbox has compiled within its limits takes the same time and memory in the server, which then compiles it again.
`sandbox_worker` is the other side.
"""

import json
from dataclasses import dataclass
from threading import Lock
from typing import Any

from server.errors import InternalError, InvalidRequest, ShuttingDown, TooLate, Unavailable
from server.sandbox.process import Killed, MemoryShort, NoAnswer, Process, Stopped, TookTooLong, WorkLimits
from server.sandbox.worker import FAULT
from server.structured.grammar.attempt import MAX_SANDBOX_S, CompileCancelled, CompileLater, current, may_wait

VOCABULARY, SCHEMA, GBNF, LARK, GRAMMAR = b"v", b"s", b"b", b"l", b"g"
"""Requests: a pickled `TokenTable`; in JSON a schema, GBNF, ``[lark, max_chars]``, or ``[grammar, param, prefix]``."""
DONE, REFUSED = b"d", b"r"
"""What is answered, in JSON: what `build` has made of it, or the message and field of an `InvalidRequest`."""
ANSWERER = "server.structured.grammar.sandbox_worker:answerer"
LIMITS = WorkLimits(cpu_s=1.5, wall_s=15.0, memory_bytes=460 << 20, answer_bytes=32 << 20)
"""Of one grammar. The memory includes a vocabulary, about 100 MB for 150,000 tokens."""
RETRY_S = 5
_TOO_MUCH = "compiling it was stopped, {}: use fewer or simpler alternatives, references and patterns"


@dataclass(eq=False, slots=True)
class _Worker:
    process: Process
    vocabulary: bytes = b""
    n_done: int = 0


class Sandbox:
    """The processes, started when they are first needed. Safe in any thread."""

    def __init__(self, limits: WorkLimits = LIMITS, max_idle: int = 2) -> None:
        self._limits, self._max_idle = limits, max_idle
        self._lock = Lock()
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False

    def compile(self, vocabulary: bytes, what: bytes, request: bytes, param: str) -> Any:
        """Compile a grammar there; returns what `sandbox_worker` answers.

        ``vocabulary``: a pickled `TokenTable`. ``param``: the field that a refusal names. Raises `InvalidRequest` for a
        grammar that is wrong or takes too much, `CompileLater`, `CompileCancelled`, and `Unavailable`.
        """
        if not may_wait():
            raise CompileLater
        attempt = current()
        if attempt.left_s <= 0:
            raise TooLate(f"{param}: compiling the grammars of this request took {MAX_SANDBOX_S:g} s", RETRY_S)
        while True:
            worker = self._taken(vocabulary)
            is_fresh = not worker.n_done
            try:
                with attempt.working(worker.process.kill):
                    kind, answer = self._asked(worker, vocabulary, what, request)
            except Stopped as stopped:
                self._end(worker)
                if attempt.cancelled:
                    raise CompileCancelled from None
                if self._closed:
                    raise ShuttingDown from None
                if isinstance(stopped, NoAnswer):
                    raise TooLate(f"{param}: compiling it was stopped, {stopped}", RETRY_S) from None
                if isinstance(stopped, MemoryShort):
                    raise Unavailable(f"compiling {param} was stopped: {stopped}") from None
                if isinstance(stopped, TookTooLong) or (is_fresh and not isinstance(stopped, Killed)):
                    raise InvalidRequest(f"{param}: {_TOO_MUCH.format(stopped)}", param) from None
                if is_fresh:
                    raise InternalError(f"the process that compiled {param} was killed") from None
                continue  # an earlier grammar may be the cause
            except BaseException:
                self._end(worker)
                raise
            self._give_back(worker)
            break
        if kind == FAULT:
            raise InternalError(f"compiling {param} failed: {answer.decode(errors='replace')[:400]}")
        found = json.loads(answer)
        if kind == REFUSED:
            raise InvalidRequest(*found)
        return found

    @property
    def at_work(self) -> list[Process]:
        """The processes that compile a grammar now."""
        with self._lock:
            return [worker.process for worker in self._busy]

    def close(self) -> None:
        """End the processes, those at work too."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for worker in self._busy:
                worker.process.kill()
        for worker in idle:
            worker.process.stop()

    def _asked(self, worker: _Worker, vocabulary: bytes, what: bytes, request: bytes) -> tuple[bytes, bytes]:
        if worker.vocabulary is not vocabulary:
            kind, answer, _ = worker.process.ask(VOCABULARY, vocabulary)
            if kind == FAULT:
                raise InternalError(f"the sandbox can't read the vocabulary: {answer.decode(errors='replace')[:400]}")
            worker.vocabulary = vocabulary
        kind, answer, lasts = worker.process.ask(what, request)
        worker.n_done += 1
        if not lasts:
            raise Stopped(f"it took more than {self._limits.memory_bytes >> 20} MiB of memory")
        return kind, answer

    def _taken(self, vocabulary: bytes) -> _Worker:
        """A process with this vocabulary, if one is idle; otherwise a new one, in place of the oldest idle one."""
        ended: list[_Worker] = []
        with self._lock:
            if self._closed:
                raise ShuttingDown
            found = next((worker for worker in self._idle if worker.vocabulary is vocabulary), None)
            if found is not None:
                self._idle.remove(found)
                self._busy.add(found)
            elif len(self._idle) >= self._max_idle:
                ended.append(self._idle.pop(0))
        for worker in ended:
            worker.process.stop()
        if found is not None and found.process.lives:
            return found
        if found is not None:
            self._end(found)
        made = _Worker(Process(ANSWERER, self._limits))
        with self._lock:
            self._busy.add(made)
            if self._closed:
                made.process.kill()
        return made

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            if not self._closed and len(self._idle) < self._max_idle:
                self._idle.append(worker)
                return
        worker.process.stop()

    def _end(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
        worker.process.stop()
