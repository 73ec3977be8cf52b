"""What comes up from a model's process: plain values of which nothing but our own dataclasses is made.

Events are tuples, since there are many: ``(ticket, [(index, text, tokens), ...])`` for bare text, which nearly all are,
and ``(ticket, [event, ...], True)`` else. Everything else is a tuple that begins with a word, pickled; `Answers` makes
dataclasses and enums of the modules below of it, and refuses every other name: a file may have taken the process over.
(That is no wall: the process has the server's user. It keeps a confused one from confusing the server.)
"""

import dataclasses
import io
import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from importlib import import_module
from operator import attrgetter
from typing import Any, TypeAlias

from server import errors
from server.engine.request import (
    Event,
    Failed,
    Finished,
    FinishReason,
    Progress,
    PromptLogprobs,
    Started,
    Text,
    Timings,
    TokenLogprob,
)
from server.errors import InternalError, LlamapoolError
from server.pool.worker.long import OutOfBand, Pieces

Plain: TypeAlias = tuple[Any, ...]
_OURS = ("server.engine.", "server.pool.", "server.media.", "server.structured.")
_ACTIVE = ("server.pool.worker.supervisor", "server.pool.load")  # these do something when they are made
_STANDARD = {("builtins", "set"), ("builtins", "range"), ("pathlib", "PosixPath"), ("pathlib._local", "PosixPath")}
_STARTED, _PROGRESS, _SCORED, _TEXT, _FINISHED, _FAILED = range(6)
_of_started, _of_progress, _of_finished, _of_timings = (
    attrgetter(*(one.name for one in dataclasses.fields(kind))) for kind in (Started, Progress, Finished, Timings)
)
_of_text, _of_token = (attrgetter(*(one.name for one in dataclasses.fields(kind))) for kind in (Text, TokenLogprob))


class Answers(pickle.Unpickler):
    """Reads what a process says; raises `pickle.UnpicklingError` for what it can't have meant."""

    def find_class(self, module: str, name: str) -> Any:
        """A plain dataclass or enum of ours."""
        if (module, name) in _STANDARD:
            return super().find_class(module, name)
        if module.startswith(_OURS) and not module.startswith(_ACTIVE):
            found = getattr(import_module(module), name, None)
            if isinstance(found, type) and (dataclasses.is_dataclass(found) or issubclass(found, Enum)):
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is nothing that a model's process says")


def read(body: bytes, long: Iterable[bytes] = ()) -> Any:
    """Return a message; `long`: the buffers that came with it. Raises `pickle.UnpicklingError`, or what a broken pickle
    raises."""
    return Answers(io.BytesIO(body), buffers=long).load()


def written(message: object) -> Pieces:
    """Return a message for `read`."""
    return OutOfBand().pieces(message)


def written_error(error: BaseException) -> Plain:
    """An error as plain values; one that is not ours as our own fault."""
    if not isinstance(error, LlamapoolError):
        error = InternalError(
            "too little memory" if isinstance(error, MemoryError) else f"{type(error).__name__}: {error}"
        )
    return type(error).__name__, error.message, vars(error)


def read_error(written: Plain) -> LlamapoolError:
    """The error again, whatever its constructor takes."""
    name, message, fields = written
    kind = getattr(errors, name, InternalError)
    error: LlamapoolError = kind.__new__(kind)
    Exception.__init__(error, message)
    vars(error).update(fields)
    return error


def written_events(batch: Iterable[tuple[int, Sequence[Event]]]) -> bytes:
    """The events of a step, by ticket."""
    items: list[Plain] = []
    for ticket, events in batch:
        bare = [
            (event.index, event.text, event.tokens)
            for event in events
            if type(event) is Text and not event.logprobs and event.timings is None
        ]
        if len(bare) == len(events):
            items.append((ticket, bare))
        else:
            items.append((ticket, [_written(event) for event in events], True))
    return pickle.dumps(items, pickle.HIGHEST_PROTOCOL)


def read_events(bodies: Iterable[bytes]) -> dict[int, list[Event]]:
    """What `written_events` wrote, of several steps; each ticket's events in order."""
    found: dict[int, list[Event]] = {}
    for body in bodies:
        for item in read(body):
            events: list[Event] = (
                [Text(*bare) for bare in item[1]] if len(item) == 2 else [_read(event) for event in item[1]]
            )
            if item[0] in found:
                found[item[0]] += events
            else:
                found[item[0]] = events
    return found


def _written(event: Event) -> Plain:
    match event:
        case Text():
            tokens = [_written_token(one) for one in event.logprobs]
            timings = None if event.timings is None else _of_timings(event.timings)
            return _TEXT, *_of_text(replace(event, logprobs=tokens, timings=timings))  # type: ignore[arg-type]
        case Started():
            return _STARTED, *_of_started(event)
        case Progress():
            return _PROGRESS, *_of_progress(event)
        case PromptLogprobs():
            return _SCORED, event.index, [one and _written_token(one) for one in event.tokens]
        case Finished():
            timings = _of_timings(event.timings)
            return _FINISHED, *_of_finished(replace(event, reason=event.reason.value, timings=timings))  # type: ignore[arg-type]
        case Failed():
            return _FAILED, written_error(event.error)


def _read(item: Plain) -> Event:
    kind, *rest = item
    if kind == _TEXT:
        text = Text(*rest)
        text.logprobs = tuple(map(_read_token, text.logprobs))
        text.timings = None if text.timings is None else Timings(*text.timings)  # type: ignore[misc]
        return text
    if kind == _STARTED:
        return Started(*rest)
    if kind == _PROGRESS:
        return Progress(*rest)
    if kind == _SCORED:
        return PromptLogprobs(rest[0], tuple(one and _read_token(one) for one in rest[1]))
    if kind == _FINISHED:
        found = Finished(*rest)
        return replace(found, reason=FinishReason(found.reason), timings=Timings(*found.timings))  # type: ignore[misc]
    return Failed(read_error(rest[0]))


def _written_token(one: TokenLogprob) -> Plain:
    plain: Plain = _of_token(replace(one, top=tuple(map(_written_token, one.top))))  # type: ignore[arg-type]
    return plain


def _read_token(item: Any) -> TokenLogprob:
    found = TokenLogprob(*item)
    return replace(found, top=tuple(map(_read_token, found.top))) if found.top else found
