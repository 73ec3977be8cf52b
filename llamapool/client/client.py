"""The client: each endpoint is a method of it, or of one of its attributes."""

from collections.abc import Iterator
from typing import Any, Literal, Self, Unpack, overload

import httpx

from llamapool.client.chat import ChatCompletionsAPI
from llamapool.client.completion import CompletionCalls
from llamapool.client.completion_replies import CompletionResponse
from llamapool.client.embeddings import EmbeddingCalls, EmbeddingsClientAPI
from llamapool.client.fields import ChatFields, Messages
from llamapool.client.lora import LoraClientAPI
from llamapool.client.messages import MessagesClientAPI
from llamapool.client.models import ModelsClientAPI
from llamapool.client.openai_completions import CompletionsClientAPI
from llamapool.client.responses import ResponsesClientAPI
from llamapool.client.server_state import ServerCalls
from llamapool.client.slots import SlotsClientAPI
from llamapool.client.stream import EventStream
from llamapool.client.text import TextCalls
from llamapool.client.transport import Transport, new_http_client


class LlamaCppClient(CompletionCalls, EmbeddingCalls, TextCalls, ServerCalls):
    """A client of one server, Llamapool or llama-server. Thread-safe. Close it, or use it as a context manager.

    ``chat.completions``, ``completions``, ``messages``, ``responses``, ``embeddings``, ``models``, ``slots`` and
    ``lora`` have further methods.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8080",
        api_key: str | None = None,
        timeout: float = 600.0,
        verify_ssl: bool = True,
    ) -> None:
        """Create a client. `timeout`: the longest time in seconds to connect, or without a byte of a reply or stream.

        `base_url` may have a path (``--api-prefix``), but no ``/v1``.
        """
        self._use(Transport(new_http_client(base_url, api_key, timeout, verify_ssl)))

    @classmethod
    def with_http_client(cls, http_client: httpx.Client) -> Self:
        """Return a client that uses `http_client` (with your CA, proxy or Unix socket) and its ``base_url``.

        Closing the client closes `http_client`, too.
        """
        client = cls.__new__(cls)
        client._use(Transport(http_client))
        return client

    def for_model(self, model: str) -> Self:
        """Return a client with the same connections that uses `model` unless a call names another one.

        Use it with a server of several models. The methods for ``/slots``, ``/tokenize``, ... have no model parameter.
        """
        client = type(self).__new__(type(self))
        client._use(Transport(self._transport.http, model))
        return client

    def _use(self, transport: Transport) -> None:
        super().__init__(transport)
        self.chat = ChatCompletionsAPI(transport)
        self.completions = CompletionsClientAPI(transport)
        self.messages = MessagesClientAPI(transport)
        self.responses = ResponsesClientAPI(transport)
        self.embeddings = EmbeddingsClientAPI(transport)
        self.models = ModelsClientAPI(transport)
        self.slots = SlotsClientAPI(transport)
        self.lora = LoraClientAPI(transport)

    @overload
    def chat_completion(
        self,
        messages: Messages,
        *,
        model: str = "gpt-codex-5.3",
        stream: Literal[False] = False,
        **kwargs: Unpack[ChatFields],
    ) -> CompletionResponse: ...
    @overload
    def chat_completion(
        self, messages: Messages, *, model: str = "gpt-codex-5.3", stream: Literal[True], **kwargs: Unpack[ChatFields]
    ) -> EventStream: ...
    @overload
    def chat_completion(
        self, messages: Messages, *, model: str = "gpt-codex-5.3", stream: bool, **kwargs: Unpack[ChatFields]
    ) -> CompletionResponse | EventStream: ...

    def chat_completion(self, messages: Messages, **kwargs: Any) -> CompletionResponse | Iterator[dict[str, Any]]:
        """Call ``chat.completions.create`` with the same parameters."""
        response: CompletionResponse | EventStream = self.chat.create(messages, **kwargs)
        return response

    def close(self) -> None:
        """Close all connections, including open streams."""
        self._transport.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
