"""``/v1/chat/completions``."""

from typing import Any, Literal, Unpack, overload

from llamapool.client.completion_replies import CompletionResponse
from llamapool.client.fields import ChatFields, Messages
from llamapool.client.stream import EventStream
from llamapool.client.transport import EndpointFamily, body_of, required


class ChatCompletionsAPI(EndpointFamily):
    """OpenAI's chat, with llama.cpp's sampling fields: ``client.chat.completions.create(...)``."""

    @property
    def completions(self) -> "ChatCompletionsAPI":
        """Itself, as in the OpenAI SDK."""
        return self

    @overload
    def create(
        self,
        messages: Messages,
        model: str = "gpt-codex-5.3",
        *,
        stream: Literal[False] = False,
        **kwargs: Unpack[ChatFields],
    ) -> CompletionResponse: ...
    @overload
    def create(
        self, messages: Messages, model: str = "gpt-codex-5.3", *, stream: Literal[True], **kwargs: Unpack[ChatFields]
    ) -> EventStream: ...
    @overload
    def create(
        self, messages: Messages, model: str = "gpt-codex-5.3", *, stream: bool, **kwargs: Unpack[ChatFields]
    ) -> CompletionResponse | EventStream: ...

    def create(
        self,
        messages: Messages,
        model: str = "gpt-codex-5.3",
        max_tokens: int | None = None,
        temperature: float | None = 1.0,
        top_p: float | None = 1.0,
        n: int | None = 1,
        stream: bool = False,
        stop: str | list[str] | None = None,
        presence_penalty: float | None = 0.0,
        frequency_penalty: float | None = 0.0,
        logit_bias: dict[str, float] | list[Any] | None = None,
        user: Any = None,
        response_format: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
        tool_choice: str | dict[str, Any] | None = None,
        seed: int | None = None,
        mirostat: int | None = 0,
        mirostat_tau: float | None = 5.0,
        mirostat_eta: float | None = 0.1,
        grammar: str | None = None,
        min_p: float | None = 0.05,
        top_k: int | None = 40,
        repeat_penalty: float | None = 1.1,
        **kwargs: Any,
    ) -> CompletionResponse | EventStream:
        """Return a chat completion, or with `stream` an iterator of its chunks.

        The defaults of this method are sent. None omits a field, so that the server's default applies. `kwargs` are
        further fields of the body. Raises `LlamaCppError`.
        """
        body = body_of(locals())
        if stream:
            return self._transport.stream("/v1/chat/completions", body)
        return CompletionResponse.from_reply(self._transport.post("/v1/chat/completions", body))

    def render(self, messages: Messages, model: str | None = None, **kwargs: Unpack[ChatFields]) -> str:
        """Return the prompt that the template renders from `messages`, `tools` and other fields of a chat."""
        return str(required(self._transport.post_object("/apply-template", body_of(locals())), "prompt"))

    def input_tokens(self, messages: Messages, model: str | None = None, **kwargs: Unpack[ChatFields]) -> int:
        """Count the tokens of the prompt of a chat."""
        reply = self._transport.post_object("/v1/chat/completions/input_tokens", body_of(locals()))
        return int(required(reply, "input_tokens"))

    def end_reasoning(self, completion_id: str) -> bool:
        """End the reasoning of a running chat with ``reasoning_control=True``. Return whether it ends."""
        body = {"id": completion_id, "action": "reasoning_end"}
        return self._transport.post_object("/v1/chat/completions/control", body).get("success") is True
