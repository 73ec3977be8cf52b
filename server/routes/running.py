"""The completions under way, by the id that their replies carry: what ``/v1/chat/completions/control`` reaches."""

from collections.abc import Callable
from dataclasses import dataclass

from server.constrain.thinking_end import ReasoningSwitch

NOT_RUNNING = "no active completion for this id"
NOT_ENABLED = "reasoning control not enabled for this completion"


@dataclass(frozen=True, slots=True)
class _Completion:
    model: str
    reasoning: ReasoningSwitch | None
    cancel: Callable[[], None]


class Running:
    """Used on the event loop."""

    def __init__(self) -> None:
        self._completions: dict[str, _Completion] = {}

    def add(
        self, completion_id: str, model: str, reasoning: ReasoningSwitch | None, cancel: Callable[[], None]
    ) -> None:
        """It begins; `model` is the model's id, `cancel` ends it."""
        self._completions[completion_id] = _Completion(model, reasoning, cancel)

    def remove(self, completion_id: str) -> None:
        """It has ended; harmless when it was never added."""
        self._completions.pop(completion_id, None)

    def end_reasoning(self, completion_id: str, model: str | None) -> str:
        """End the thoughts of a completion of that model, or of any. The reason why not, "" when it was done;
        llama-server's words (tools/server/server-context.cpp, SERVER_TASK_TYPE_CONTROL)."""
        found = self._completions.get(completion_id)
        if found is None or (model is not None and found.model != model):
            return NOT_RUNNING
        if found.reasoning is None:
            return NOT_ENABLED
        found.reasoning.end()
        return ""

    def cancel(self, completion_id: str, model: str | None) -> str:
        """End a completion of that model, or of any. The reason why not, "" when it was done."""
        found = self._completions.get(completion_id)
        if found is None or (model is not None and found.model != model):
            return NOT_RUNNING
        found.cancel()
        return ""
