"""``POST /v1/chat/completions/control`` ends the reasoning of a running chat with ``reasoning_control`` or, which only
Llamapool has, the whole request.

The event loop sets the switch; the constraint (`reasoning_end`), which the step thread consults for every token,
reads it at the next one.
"""

from dataclasses import dataclass

from server.dialects.fields import Body, parse
from server.errors import InvalidRequest

REASONING_END = "reasoning_end"
CANCEL = "cancel"


class ControlBody(Body):
    """The body of ``POST /v1/chat/completions/control``."""

    id: str | None = None
    action: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Control:
    """A validated body: end the reasoning of that completion, or all of it. ``model`` None = any."""

    completion_id: str
    model: str | None
    cancel: bool = False


def read_control(given: object) -> Control:
    """Check the body. Raises `InvalidRequest` in llama-server's words."""
    body = parse(ControlBody, given)
    if not body.id:
        raise InvalidRequest("missing completion id", "id")
    if body.action not in (REASONING_END, CANCEL):
        raise InvalidRequest(f"unknown control action; there are '{REASONING_END}' and '{CANCEL}'", "action")
    return Control(body.id, body.model or None, cancel=body.action == CANCEL)
