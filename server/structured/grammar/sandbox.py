"""Compiles grammars in a sandboxed process first, so that an explosive grammar only ends that process.

llguidance intersects schemas without a bound: two kilobytes of `oneOf` and `allOf` can take all memory. A grammar that
compiled within the sandbox's limits takes the same time and memory in the server, which then compiles it again.
`sandbox_worker` runs in the process.
"""

import json
from typing import Any

from server.errors import InternalError, InvalidRequest, ShuttingDown, TooLate, Unavailable
from server.sandbox.process import Killed, MemoryShort, NoAnswer, Process, Processes, Stopped, TookTooLong, WorkLimits
from server.sandbox.worker import FAULT
from server.structured.grammar.attempt import MAX_SANDBOX_S, CompileCancelled, CompileLater, current

VOCABULARY, COMPILE = b"v", b"c"
"""Requests: a pickled `TokenTable`; JSON of the kind and the request for `build`, and of the field that errors name."""
DONE, REFUSED = b"d", b"r"
"""Replies, in JSON: a `Grammar`, or the message and field of an `InvalidRequest`."""
ANSWERER = "server.structured.grammar.sandbox_worker:answerer"
LIMITS = WorkLimits(cpu_s=1.5, wall_s=15.0, memory_bytes=460 << 20, answer_bytes=32 << 20)
"""Limits of one grammar. The memory includes a vocabulary, about 100 MB for 150,000 tokens."""
RETRY_S = 5
_TOO_MUCH = "compiling it was stopped, {}: use fewer or simpler alternatives, references and patterns"


class Sandbox(Processes):
    """The processes, which are started on demand. Thread-safe."""

    def __init__(self, limits: WorkLimits = LIMITS) -> None:
        super().__init__(ANSWERER, limits, max_idle=2)

    def compile(self, vocabulary: bytes, request: bytes, param: str) -> Any:
        """Compile a grammar in a process and return its reply (`DONE`).

        ``vocabulary``: a pickled `TokenTable`. ``param``: the field that errors name. Raises `InvalidRequest` if the
        grammar is invalid or exceeds the limits, `CompileLater`, `CompileCancelled`, `TooLate`, and `Unavailable`.
        """
        attempt = current()
        if attempt is None:
            raise CompileLater
        if attempt.left_s <= 0:
            raise TooLate(f"{param}: compiling the grammars of this request took {MAX_SANDBOX_S:g} s", RETRY_S)
        is_fresh = True
        while True:
            if self._closed:
                raise ShuttingDown
            try:
                with self.borrowed(vocabulary) as process:
                    is_fresh = not process.n_done
                    with attempt.working(process.kill):
                        kind, answer = self._reply(process, vocabulary, request)
                break
            except Stopped as stopped:
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
                # An earlier grammar may have caused it: retry in a new process.
        if kind == FAULT:
            raise InternalError(f"compiling {param} failed: {answer.decode(errors='replace')[:400]}")
        reply = json.loads(answer)
        if kind == REFUSED:
            raise InvalidRequest(*reply)
        return reply

    def close(self, *, kill: bool = True) -> None:
        """End the processes, including those that are compiling."""
        super().close(kill=kill)

    def _reply(self, process: Process, vocabulary: bytes, request: bytes) -> tuple[bytes, bytes]:
        if not process.n_done:
            kind, answer, _ = process.ask(VOCABULARY, vocabulary)
            if kind == FAULT:
                process.is_reusable = False
                raise InternalError(f"the sandbox can't read the vocabulary: {answer.decode(errors='replace')[:400]}")
        kind, answer, lasts = process.ask(COMPILE, request)
        if not lasts:
            raise Stopped(f"it took more than {self._limits.memory_bytes >> 20} MiB of memory")
        return kind, answer
