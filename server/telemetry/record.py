"""One HTTP request and its usage, for the log, metrics and traces. While the request runs, only attributes are set;
everything is computed after its end.
"""

import re
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from server.engine.request import Finished, Started, State

RECORD = "llamapool.record"
"""A key in the ASGI scope of a request: its `Record`."""
REQUEST_ID: ContextVar[str] = ContextVar("request", default="")
"""The id of the request that the current task serves, for log lines."""
STAGES = ("load", "prepare", "queue", "placement", "prefill", "decode")
"""Parts of a request's time in the order of their starts. `ModelUse` has their seconds."""
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(slots=True)
class ModelUse:
    """A request's usage of a model, summed over its choices.

    Seconds are those of the slowest choice. ``reasons`` are the finish reasons in the order of the choices' ends.
    """

    model: str = ""
    n_prompt: int = 0
    n_cached: int = 0
    n_predicted: int = 0
    n_draft: int = 0  # draft tokens
    n_draft_accepted: int = 0
    source: str = ""  # source of the last prompt's cached tokens
    recompute: str = ""  # reason why its other tokens were prefilled
    slots: list[int] = field(default_factory=list)
    began_at: float = 0.0  # time of the model lookup (`time.perf_counter`, like the next)
    submitted_at: float = 0.0  # time of the submission to the engine; 0 = not submitted
    load_s: float = 0.0  # wait for the model
    prepare_s: float = 0.0  # template, tokenization, grammar and media
    queue_s: float = 0.0  # wait for a slot
    placement_s: float = 0.0  # restoring its cells from a cached prefix
    prefill_s: float = 0.0
    decode_s: float = 0.0
    reasons: list[str] = field(default_factory=list)
    n_open: int = 0  # running choices
    decoding_since: float = 0.0  # start of decode of the last choice that started (`time.perf_counter`)
    retried: bool = False  # the model's process ended; the other values are from the second attempt

    def started(self, event: Started) -> None:
        """Record that the prompt of a choice is computed."""
        if event.index == 0:
            self.n_cached += event.n_cached
            self.source, self.recompute = event.source, event.recompute
        if event.id_slot >= 0:
            self.slots.append(event.id_slot)
        self.queue_s = max(self.queue_s, event.queue_s)
        self.placement_s = max(self.placement_s, event.placement_s)
        self.prefill_s = max(self.prefill_s, event.prefill_s)
        self.decoding_since = time.perf_counter()

    def finished(self, event: Finished) -> None:
        self.n_draft += event.timings.draft_n
        self.n_draft_accepted += event.timings.draft_n_accepted
        self.decode_s = max(self.decode_s, event.timings.predicted_ms / 1e3)
        self.reasons.append(event.reason.value)
        self.n_open -= 1

    def cut_off(self, reason: State, placed_at: float = 0.0) -> None:
        """End all running choices with `reason`. `placed_at`: when the last choice with a slot got it, if none started
        (`time.perf_counter`); 0 = none has a slot.
        """
        if self.n_open and not self.decoding_since:
            now = time.perf_counter()
            self.queue_s = (placed_at or now) - self.submitted_at
            self.prefill_s = now - placed_at if placed_at else 0.0
        if self.n_open and self.decoding_since:
            self.decode_s = max(self.decode_s, time.perf_counter() - self.decoding_since)
        self.reasons += [reason] * self.n_open
        self.n_open = 0


@dataclass(slots=True)
class Record:
    """One HTTP request. ``status`` 0: the reply has not started."""

    id: str
    method: str
    path: str
    key: str = ""  # the name of its API key
    refused_key: str = ""  # the log's name for an invalid key
    polled: bool = False  # a polled endpoint such as /health
    route: str = ""  # the path template of its route, which contains no text of the client
    status: int = 0
    finished: bool = False  # the complete reply was sent
    started_at: float = field(default_factory=time.perf_counter)
    elapsed_s: float = 0.0  # until its end
    headers: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)  # of the request
    error: str = ""  # `reason_of` the exception that ended it
    subject: str = ""  # the model that an administrative request names, in the client's spelling
    usage: ModelUse | None = None

    @property
    def outcome(self) -> str:
        """Return the final state, or the reason of a failure."""
        return self.error or (State.DONE if self.finished else State.CUT_OFF).value

    def fields(self) -> dict[str, object]:
        """Return the fields of its log line besides method, path, status and time, without any text of the client."""
        fields: dict[str, object] = {"request": self.id}
        if self.key or self.refused_key:
            fields["key"] = self.key or self.refused_key
        used = self.usage
        if used is not None and used.model:
            fields["model"] = used.model
            if used.slots:
                fields["slot"] = ",".join(map(str, used.slots))
            fields |= {"prompt": used.n_prompt, "cached": used.n_cached, "predicted": used.n_predicted}
            if used.recompute:
                fields |= {"source": used.source, "recompute": used.recompute}
            if used.n_draft:
                fields |= {"draft": used.n_draft, "draft_accepted": used.n_draft_accepted}
            fields |= {f"{stage}_ms": round(getattr(used, f"{stage}_s") * 1e3, 1) for stage in STAGES}
            if used.retried:
                fields["retried"] = True
            if used.reasons:
                fields["finish"] = ",".join(used.reasons)
        fields["outcome"] = self.outcome
        return fields


def reason_of(error: BaseException) -> str:
    """Return an error's ``outcome``, otherwise its type in snake case (``too_late``), or an HTTP exception's status
    (``http_404``). The result never contains the message.
    """
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return f"http_{status}"
    outcome: str = getattr(error, "outcome", "")
    return outcome or _WORD_START.sub("_", type(error).__name__).lower()
