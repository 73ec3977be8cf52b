"""The parts of `benchmarks.budget`, and how their CPU time is counted: each without the parts that it calls."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import TracebackType
from typing import Any, Self

from server.engine.generate.output import Outputs
from server.engine.generate.text import TextStream
from server.engine.schedule.scheduler import Scheduler
from server.engine.step.loop import Instance
from server.engine.step.mailbox import Mailbox
from server.llama.batch import Batch
from server.llama.runner import LlamaRunner
from server.routes import generate
from server.wire.chat.write import ChatStream


@dataclass(frozen=True, slots=True)
class Part:
    """A function whose time is counted under a name."""

    name: str
    thread: str
    owner: Any
    function: str


EVERY_PART = [
    Part("decode (library)", "step", LlamaRunner, "_decode_entries"),
    Part("sampling (library)", "step", LlamaRunner, "sample"),
    Part("receive", "step", Instance, "_receive"),
    Part("place", "step", Instance, "_place"),
    Part("plan", "step", Scheduler, "plan"),
    Part("fill the batch", "step", Batch, "fill"),
    Part("commit", "step", Scheduler, "commit"),
    Part("results", "step", Instance, "_take_results"),
    Part("token to event", "step", Outputs, "sample"),
    Part("bytes to text", "step", TextStream, "feed"),
    Part("mailbox, emit", "step", Mailbox, "emit"),
    Part("mailbox, post", "step", Mailbox, "post"),
    Part("deliver", "loop", Mailbox, "_deliver"),
    Part("dialect", "loop", ChatStream, "feed"),
    Part("events to chunks", "loop", generate, "_written"),
]
NATIVE = ("decode (library)", "sampling (library)")


class Threads:
    """Counts while it is entered. Every thread has a stack of the parts that it is in."""

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._seconds: dict[str, float] = {}
        self._calls: dict[str, int] = {}
        self._inner: dict[str, int] = {}
        self._local = threading.local()
        self._originals: list[tuple[Part, Any]] = []
        self._step: Callable[[Instance], bool] = Instance._step
        self._step_began = 0.0
        self.n_steps = 0
        self.step_s = 0.0
        self._whole, self._inside = _cost()

    def reset(self) -> None:
        """Forget what was counted so far."""
        self._seconds = dict.fromkeys((part.name for part in self._parts), 0.0)
        self._calls, self._inner = dict.fromkeys(self._seconds, 0), dict.fromkeys(self._seconds, 0)
        self.n_steps, self.step_s, self._step_began = 0, 0.0, 0.0

    def seconds(self) -> dict[str, float]:
        """By part, without what counting took."""
        return {
            name: max(s - self._calls[name] * self._inside - self._inner[name] * (self._whole - self._inside), 0.0)
            for name, s in self._seconds.items()
        }

    def calls(self) -> dict[str, int]:
        """By part."""
        return dict(self._calls)

    def __enter__(self) -> Self:
        self.reset()
        for part in self._parts:
            original = getattr(part.owner, part.function)
            self._originals.append((part, original))
            setattr(part.owner, part.function, self._counted(part.name, original))
        Instance._step = self._stepped(Instance._step)  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        Instance._step = self._step  # type: ignore[method-assign]
        for part, original in self._originals:
            setattr(part.owner, part.function, original)

    def _stepped(self, original: Callable[[Instance], bool]) -> Callable[[Instance], bool]:
        """Counts steps, and the thread's time from the end of one to the end of the next."""

        @wraps(original)
        def step(instance: Instance) -> bool:
            began = self._step_began or time.thread_time()
            went_on = original(instance)
            self._step_began = time.thread_time()
            self.step_s += self._step_began - began
            self.n_steps += went_on
            return went_on

        return step

    def _counted(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        local = self._local

        @wraps(original)
        def counted(*given: Any, **named: Any) -> Any:
            stack = local.__dict__.setdefault("stack", [])
            frame = [0.0, 0]
            stack.append(frame)
            began = time.thread_time()
            try:
                return original(*given, **named)
            finally:
                took = time.thread_time() - began
                stack.pop()
                if name in self._seconds:
                    self._seconds[name] += took - frame[0]
                    self._calls[name] += 1
                    self._inner[name] += int(frame[1])
                if stack:
                    stack[-1][0] += took
                    stack[-1][1] += 1

        return counted


def _cost(n: int = 20_000) -> tuple[float, float]:
    """What one counted call costs in all, and how much of it is counted as the function's own."""
    threads = Threads.__new__(Threads)
    threads._seconds, threads._calls, threads._inner = {"": 0.0}, {"": 0}, {"": 0}
    threads._local = threading.local()

    def nothing() -> None:
        pass

    counted = threads._counted("", nothing)
    began = time.thread_time()
    for _ in range(n):
        nothing()
    plain = time.thread_time() - began
    began = time.thread_time()
    for _ in range(n):
        counted()
    whole = time.thread_time() - began
    return (whole - plain) / n, threads._seconds[""] / n
