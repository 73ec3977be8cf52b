"""llama-server's own ``/completion`` and ``/infill``."""

from typing import Any, Literal, Unpack, overload

from llamapool.client.completion_replies import CompletionResponse
from llamapool.client.fields import CompletionFields, Extra, InfillFields
from llamapool.client.stream import EventStream
from llamapool.client.transport import EndpointFamily, body_of

Prompt = str | list[str | int] | list[str] | list[int]


class CompletionCalls(EndpointFamily):
    """Native completions. All raise `LlamaCppError`."""

    @overload
    def complete(
        self, prompt: Prompt, n_predict: int = -1, *, stream: Literal[False] = False, **kwargs: Unpack[CompletionFields]
    ) -> CompletionResponse: ...
    @overload
    def complete(
        self, prompt: Prompt, n_predict: int = -1, *, stream: Literal[True], **kwargs: Unpack[CompletionFields]
    ) -> EventStream: ...
    @overload
    def complete(
        self, prompt: Prompt, n_predict: int = -1, *, stream: bool, **kwargs: Unpack[CompletionFields]
    ) -> CompletionResponse | EventStream: ...

    def complete(
        self,
        prompt: Prompt,
        n_predict: int = -1,
        temperature: float | None = 0.8,
        top_k: int | None = 40,
        top_p: float | None = 0.95,
        min_p: float | None = 0.05,
        repeat_penalty: float | None = 1.1,
        repeat_last_n: int | None = 64,
        presence_penalty: float | None = 0.0,
        frequency_penalty: float | None = 0.0,
        mirostat: int | None = 0,
        mirostat_tau: float | None = 5.0,
        mirostat_eta: float | None = 0.1,
        grammar: str | None = None,
        json_schema: dict[str, Any] | bool | None = None,
        seed: int | None = -1,
        stop: str | list[str] | None = None,
        stream: bool = False,
        cache_prompt: bool | None = True,
        n_probs: int | None = 0,
        samplers: list[str] | str | None = None,
        dry_multiplier: float | None = 0.0,
        dry_base: float | None = 1.75,
        dry_allowed_length: int | None = 2,
        dry_penalty_last_n: int | None = -1,
        xtc_probability: float | None = 0.0,
        xtc_threshold: float | None = 0.1,
        dynatemp_range: float | None = 0.0,
        dynatemp_exponent: float | None = 1.0,
        typical_p: float | None = 1.0,
        id_slot: int | None = -1,
        return_tokens: bool | None = False,
        **kwargs: Any,
    ) -> CompletionResponse | EventStream:
        """Complete `prompt`: a text, tokens, both mixed, or a list of texts, each of which gets a choice.

        With `stream`, return an iterator of the native chunks (``content``, ``stop``, ...). The defaults of this method
        are sent; None omits a field. `kwargs` are further fields of the body. A `dry_penalty_last_n` of -1 is not sent:
        newer versions of llama-server reject this former default and use 64 (server-schema.cpp).
        """
        body = body_of(locals())
        if dry_penalty_last_n == -1:
            del body["dry_penalty_last_n"]
        if stream:
            return self._transport.stream("/completion", body)
        n_per_prompt = int(kwargs.get("n_cmpl") or kwargs.get("n") or 1)
        return CompletionResponse.from_native(self._transport.post("/completion", body), n_per_prompt)

    @overload
    def simple_completion(
        self, prompt: str, *, stream: Literal[False] = False, **kwargs: Unpack[InfillFields]
    ) -> str | CompletionResponse: ...
    @overload
    def simple_completion(
        self, prompt: str, *, stream: Literal[True], **kwargs: Unpack[InfillFields]
    ) -> EventStream: ...
    @overload
    def simple_completion(
        self, prompt: str, *, stream: bool, **kwargs: Unpack[InfillFields]
    ) -> str | CompletionResponse | EventStream: ...

    def simple_completion(self, prompt: str, **kwargs: Any) -> str | CompletionResponse | EventStream:
        """Return the text that completes `prompt`, with the parameters of `complete`.

        Returns the whole response if it is not one text (``n_cmpl``, ``response_fields``), an iterator with ``stream``.
        """
        response: CompletionResponse | EventStream = self.complete(prompt, **kwargs)
        if isinstance(response, EventStream):
            return response
        texts = [choice.text for choice in response.choices]
        return texts[0] if len(texts) == 1 and texts[0] is not None else response

    @overload
    def infill(
        self,
        input_prefix: str,
        input_suffix: str,
        input_extra: Extra | None = None,
        prompt: str | None = None,
        *,
        stream: Literal[True],
        **kwargs: Unpack[InfillFields],
    ) -> EventStream: ...
    @overload
    def infill(
        self,
        input_prefix: str,
        input_suffix: str,
        input_extra: Extra | None = None,
        prompt: str | None = None,
        *,
        stream: Literal[False] = False,
        **kwargs: Unpack[InfillFields],
    ) -> CompletionResponse: ...
    @overload
    def infill(
        self,
        input_prefix: str,
        input_suffix: str,
        input_extra: Extra | None = None,
        prompt: str | None = None,
        *,
        stream: bool,
        **kwargs: Unpack[InfillFields],
    ) -> CompletionResponse | EventStream: ...

    def infill(
        self,
        input_prefix: str,
        input_suffix: str,
        input_extra: Extra | None = None,
        prompt: str | None = None,
        stream: bool = False,
        **kwargs: Any,
    ) -> CompletionResponse | EventStream:
        """Fill the middle between `input_prefix` and `input_suffix`; `prompt` follows the FIM_MID token.

        `input_extra`: other files, ``{"filename", "text"}``. `kwargs`: those of `complete`, with the server's defaults.
        """
        body = body_of(locals())
        if stream:
            return self._transport.stream("/infill", body)
        return CompletionResponse.from_native(self._transport.post("/infill", body), int(kwargs.get("n_cmpl") or 1))
