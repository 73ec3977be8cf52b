"""``/v1/completions``: OpenAI's text completions, and log probabilities of a prompt."""

from dataclasses import dataclass
from typing import Any, Literal, Unpack, overload

from llamapool.client.completion_replies import CompletionResponse
from llamapool.client.errors import UnexpectedReply
from llamapool.client.fields import TextFields
from llamapool.client.stream import EventStream
from llamapool.client.transport import EndpointFamily, body_of

Prompt = str | list[Any]


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token of a text. ``logprob`` is None for the first token. ``offset``: its position in the text."""

    token: str
    logprob: float | None
    offset: int
    best: float | None = None  # log probability of the most probable token
    best_token: str | None = None


class CompletionsClientAPI(EndpointFamily):
    """``client.completions``. All methods raise `LlamaCppError`."""

    @overload
    def create(
        self, prompt: Prompt, model: str | None = None, *, stream: Literal[False] = False, **kwargs: Unpack[TextFields]
    ) -> CompletionResponse: ...
    @overload
    def create(
        self, prompt: Prompt, model: str | None = None, *, stream: Literal[True], **kwargs: Unpack[TextFields]
    ) -> EventStream: ...

    def create(
        self, prompt: Prompt, model: str | None = None, *, stream: bool = False, **kwargs: Any
    ) -> CompletionResponse | EventStream:
        """Return a completion, or with `stream` an iterator of its chunks. `kwargs` are fields of the body."""
        body = body_of(locals())
        if stream:
            return self._transport.stream("/v1/completions", body)
        return CompletionResponse.from_reply(self._transport.post("/v1/completions", body))

    def score(self, prompt: Prompt, model: str | None = None, **kwargs: Unpack[TextFields]) -> list[TokenScore]:
        """Return the log probability of each token of `prompt`, given the tokens before it. Llamapool only."""
        body = body_of({**kwargs, "prompt": prompt, "model": model, "echo": True, "logprobs": 1, "max_tokens": 0})
        reply = CompletionResponse.from_reply(self._transport.post("/v1/completions", body))
        scores = (reply.choices[0].raw if reply.choices else {}).get("logprobs")
        if not isinstance(scores, dict) or "token_logprobs" not in scores:
            raise UnexpectedReply("the reply has no log probabilities of the prompt", reply.raw)
        columns = (scores[name] for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"))
        rows = zip(*columns, strict=True)
        return [_score(token, logprob, offset, top or {}) for token, logprob, offset, top in rows]


def _score(token: str, logprob: float | None, offset: int, top: dict[str, float]) -> TokenScore:
    best = max(top, key=lambda name: top[name], default=None)
    return TokenScore(token, logprob, offset, None if best is None else top[best], best)
