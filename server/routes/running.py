"""The completions in progress by the id of their replies, for ``/v1/chat/completions/control``."""

from collections.abc import Callable
from dataclasses import dataclass

from server.structured.reasoning_end import ReasoningSwitch

NOT_RUNNING = "no active completion for this id"
NOT_ENABLED = "reasoning control not enabled for this completion"


@dataclass(frozen=True, slots=True)
class _Completion:
    model: str
    reasoning: ReasoningSwitch | None
    cancel: Callable[[], None]
    owner: str


class Running:
    """Used on the event loop."""

    def __init__(self) -> None:
        self._completions: dict[str, _Completion] = {}

    def add(
        self,
        completion_id: str,
        model: str,
        reasoning: ReasoningSwitch | None,
        cancel: Callable[[], None],
        owner: str = "",
    ) -> None:
        """Add a completion. `model`: the model's id; `cancel` ends it; `owner`: see `Key.owner`."""
        self._completions[completion_id] = _Completion(model, reasoning, cancel, owner)

    def remove(self, completion_id: str) -> None:
        """Remove a completion. Does nothing if it was not added."""
        self._completions.pop(completion_id, None)

    def _find(self, completion_id: str, model: str | None, owner: str | None) -> _Completion | None:
        """Find a completion of `model` and `owner`; None = of any."""
        found = self._completions.get(completion_id)
        fits = found is not None and model in (None, found.model) and owner in (None, found.owner)
        return found if fits else None

    def end_reasoning(self, completion_id: str, model: str | None, owner: str | None = None) -> str:
        """End the reasoning of a completion of `model` and `owner`; None = of any.

        Return "", or llama-server's error message (tools/server/server-context.cpp, SERVER_TASK_TYPE_CONTROL).
        """
        found = self._find(completion_id, model, owner)
        if found is None:
            return NOT_RUNNING
        if found.reasoning is None:
            return NOT_ENABLED
        found.reasoning.end()
        return ""

    def cancel(self, completion_id: str, model: str | None, owner: str | None = None) -> str:
        """End a completion of `model` and `owner`; None = of any. Return "" or an error message."""
        found = self._find(completion_id, model, owner)
        if found is None:
            return NOT_RUNNING
        found.cancel()
        return ""
