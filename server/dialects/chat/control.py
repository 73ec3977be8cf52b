"""``POST /v1/chat/completions/control`` acts on a running request: it ends the thoughts of a chat that was asked with
``reasoning_control``, or, which is Llamapool's own, the whole request.

The switch is turned on the event loop; the constraint (`thinking_end`), which the step thread asks about every token,
sees it at the next one.
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
    """A checked one: end the thoughts of that completion, or all of it. ``model`` None is any."""

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
