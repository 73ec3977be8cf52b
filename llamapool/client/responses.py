"""``/v1/responses``: OpenAI's Responses API."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self, Unpack, overload
from urllib.parse import quote

from llamapool.client.completion_replies import Raw
from llamapool.client.fields import ResponseFields
from llamapool.client.stream import EventStream
from llamapool.client.transport import EndpointFamily, as_object, as_objects, body_of, required

Input = str | list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ResponseReply:
    """A response. ``output``: its items (message, reasoning, function_call)."""

    id: str
    model: str
    status: str
    output: list[Raw]
    input_tokens: int
    output_tokens: int
    raw: Raw = field(repr=False, compare=False)

    @property
    def output_text(self) -> str:
        """The joined text of its messages."""
        parts = (part for item in self.output if item.get("type") == "message" for part in item.get("content") or [])
        return "".join(str(part.get("text") or "") for part in parts if part.get("type") == "output_text")

    @classmethod
    def from_reply(cls, reply: Any) -> Self:
        """Parse OpenAI's reply. Raises `UnexpectedReply`."""
        found = as_object(reply)
        usage = found.get("usage") or {}
        return cls(
            id=str(required(found, "id")),
            model=str(found.get("model") or ""),
            status=str(found.get("status") or ""),
            output=as_objects(found.get("output")),
            input_tokens=int(usage.get("input_tokens") or 0),
            output_tokens=int(usage.get("output_tokens") or 0),
            raw=found,
        )


class ResponsesClientAPI(EndpointFamily):
    """``client.responses``. All methods raise `LlamaCppError`."""

    @overload
    def create(
        self,
        input: Input,
        model: str | None = None,
        *,
        stream: Literal[False] = False,
        **kwargs: Unpack[ResponseFields],
    ) -> ResponseReply: ...
    @overload
    def create(
        self, input: Input, model: str | None = None, *, stream: Literal[True], **kwargs: Unpack[ResponseFields]
    ) -> EventStream: ...

    def create(
        self,
        input: Input,  # noqa: A002
        model: str | None = None,
        *,
        stream: bool = False,
        **kwargs: Any,
    ) -> ResponseReply | EventStream:
        """Return a response, or with `stream` an iterator of its events. `kwargs` are fields of the body."""
        body = body_of(locals())
        if stream:
            return self._transport.stream("/v1/responses", body)
        return ResponseReply.from_reply(self._transport.post("/v1/responses", body))

    def retrieve(self, response_id: str) -> ResponseReply:
        """Return a stored response. Llamapool only, like `delete` and `input_tokens`."""
        return ResponseReply.from_reply(self._transport.get(_path(response_id)))

    def delete(self, response_id: str) -> bool:
        """Delete a stored response. Return whether it was deleted."""
        return as_object(self._transport.delete(_path(response_id))).get("deleted") is True

    def input_tokens(self, input: Input, model: str | None = None, **kwargs: Unpack[ResponseFields]) -> int:  # noqa: A002
        """Count the tokens of the prompt of `input`."""
        reply = self._transport.post_object("/v1/responses/input_tokens", body_of(locals()))
        return int(required(reply, "input_tokens"))


def _path(response_id: str) -> str:
    return f"/v1/responses/{quote(response_id, safe='')}"
