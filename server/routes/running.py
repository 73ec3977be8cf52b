"""The completions under way, by the id that their replies carry: what ``/v1/chat/completions/control`` reaches."""

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
        """It begins; `model` is the model's id, `cancel` ends it, `owner` is whose it is (`Key.owner`)."""
        self._completions[completion_id] = _Completion(model, reasoning, cancel, owner)

    def remove(self, completion_id: str) -> None:
        """It has ended; harmless when it was never added."""
        self._completions.pop(completion_id, None)

    def _find(self, completion_id: str, model: str | None, owner: str | None) -> _Completion | None:
        """Of that model and that owner; None = of any."""
        found = self._completions.get(completion_id)
        fits = found is not None and model in (None, found.model) and owner in (None, found.owner)
        return found if fits else None

    def end_reasoning(self, completion_id: str, model: str | None, owner: str | None = None) -> str:
        """End the thoughts of a completion of that model and owner, None = of any. The reason why not, "" when it was
        done; llama-server's words (tools/server/server-context.cpp, SERVER_TASK_TYPE_CONTROL)."""
        found = self._find(completion_id, model, owner)
        if found is None:
            return NOT_RUNNING
        if found.reasoning is None:
            return NOT_ENABLED
        found.reasoning.end()
        return ""

    def cancel(self, completion_id: str, model: str | None, owner: str | None = None) -> str:
        """End a completion of that model and owner, None = of any. The reason why not, "" when it was done."""
        found = self._find(completion_id, model, owner)
        if found is None:
            return NOT_RUNNING
        found.cancel()
        return ""
