"""``/v1/messages``: Anthropic's API."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self, Unpack, overload

from llamapool.client.completion_replies import Raw
from llamapool.client.fields import MessageFields, Messages
from llamapool.client.stream import EventStream
from llamapool.client.transport import EndpointFamily, as_object, as_objects, body_of, required


@dataclass(frozen=True, slots=True)
class MessageResponse:
    """A message of the model. ``content``: its blocks (text, thinking, tool_use)."""

    id: str
    model: str
    content: list[Raw]
    stop_reason: str | None
    stop_sequence: str | None
    input_tokens: int
    output_tokens: int
    raw: Raw = field(repr=False, compare=False)

    @property
    def text(self) -> str:
        """The joined text blocks."""
        return "".join(str(block.get("text") or "") for block in self.content if block.get("type") == "text")

    @classmethod
    def from_reply(cls, reply: Any) -> Self:
        """Parse Anthropic's reply. Raises `UnexpectedReply`."""
        found = as_object(reply)
        usage = found.get("usage") or {}
        return cls(
            id=str(found.get("id") or ""),
            model=str(found.get("model") or ""),
            content=as_objects(found.get("content")),
            stop_reason=found.get("stop_reason"),
            stop_sequence=found.get("stop_sequence"),
            input_tokens=int(usage.get("input_tokens") or 0),
            output_tokens=int(usage.get("output_tokens") or 0),
            raw=found,
        )


class MessagesClientAPI(EndpointFamily):
    """``client.messages``. All methods raise `LlamaCppError`."""

    @overload
    def create(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        model: str | None = None,
        *,
        stream: Literal[False] = False,
        **kwargs: Unpack[MessageFields],
    ) -> MessageResponse: ...
    @overload
    def create(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        model: str | None = None,
        *,
        stream: Literal[True],
        **kwargs: Unpack[MessageFields],
    ) -> EventStream: ...

    def create(
        self,
        messages: Messages,
        max_tokens: int = 1024,
        model: str | None = None,
        *,
        stream: bool = False,
        **kwargs: Any,
    ) -> MessageResponse | EventStream:
        """Return the reply, or with `stream` an iterator of Anthropic's events. `kwargs` are fields of the body."""
        body = body_of(locals())
        if stream:
            return self._transport.stream("/v1/messages", body)
        return MessageResponse.from_reply(self._transport.post("/v1/messages", body))

    def count_tokens(self, messages: Messages, model: str | None = None, **kwargs: Unpack[MessageFields]) -> int:
        """Count the tokens of the prompt of `messages`."""
        return int(
            required(self._transport.post_object("/v1/messages/count_tokens", body_of(locals())), "input_tokens")
        )
