"""What chat, completion and infill return: one shape for OpenAI's reply and for llama-server's own."""

import time
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from llamapool.client.transport import as_object, as_objects

Raw = dict[str, Any]


class StopType(StrEnum):
    """Why a native completion ended."""

    NONE = "none"
    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"


_FINISH_REASONS = {StopType.EOS: "stop", StopType.WORD: "stop", StopType.LIMIT: "length"}


@dataclass(frozen=True, slots=True)
class Usage:
    """How many tokens went in and came out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of_reply(cls, reply: Raw) -> Self | None:
        """Parse a reply's ``usage`` in OpenAI's form; None without one. Embeddings have no ``completion_tokens``."""
        usage = reply.get("usage")
        if not isinstance(usage, dict):
            return None
        n_prompt = int(usage.get("prompt_tokens") or 0)
        n_completion = int(usage.get("completion_tokens") or 0)
        return cls(n_prompt, n_completion, int(usage.get("total_tokens") or n_prompt + n_completion))


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a request took: tokens, milliseconds, and tokens per second."""

    prompt_n: int = 0
    prompt_ms: float = 0.0
    prompt_per_token_ms: float = 0.0
    prompt_per_second: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    predicted_per_token_ms: float = 0.0
    predicted_per_second: float = 0.0
    cache_n: int = 0

    @classmethod
    def of_reply(cls, reply: Raw) -> Self | None:
        """Parse a reply's ``timings``; None without one. A field that an older server omits or sets to null is 0."""
        timings = reply.get("timings")
        if not isinstance(timings, dict):
            return None
        given: Raw = {each.name: timings.get(each.name) or 0 for each in fields(cls)}
        values: Raw = {name: int(n) if name.endswith("_n") else float(n) for name, n in given.items()}
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Message:
    """The model's message; ``content`` is "" with tool calls."""

    role: str
    content: str
    tool_calls: list[Raw] | None = None
    reasoning_content: str | None = None

    @classmethod
    def from_reply(cls, message: Raw) -> Self:
        """Parse the ``message`` of a chat choice."""
        return cls(
            role=str(message.get("role") or "assistant"),
            content=str(message.get("content") or ""),
            tool_calls=message.get("tool_calls"),
            reasoning_content=message.get("reasoning_content"),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. A chat's has ``message``, a completion's ``text``; ``raw`` is its JSON (tokens, logprobs, slot)."""

    index: int
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @property
    def stop_type(self) -> StopType | None:
        """Return why a native completion ended; None if the reply does not say."""
        return _stop_type(self.raw)

    @classmethod
    def from_reply(cls, choice: Raw, position: int) -> Self:
        """Parse one of OpenAI's ``choices``."""
        message = choice.get("message")
        return cls(
            index=int(choice.get("index", position)),
            message=Message.from_reply(message) if isinstance(message, dict) else None,
            text=choice.get("text"),
            finish_reason=choice.get("finish_reason"),
            raw=choice,
        )

    @classmethod
    def from_native(cls, reply: Raw, position: int) -> Self:
        """Parse a native reply, or one element of an array of replies."""
        reason = _FINISH_REASONS.get(_stop_type(reply) or StopType.NONE)
        return cls(index=position, text=reply.get("content"), finish_reason=reason, raw=reply)


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """A whole reply. ``raw`` is its JSON: an array where a native request had several prompts or ``n_cmpl``."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    timings: Timings | None = None
    system_fingerprint: str | None = None
    raw: Any = field(default=None, repr=False, compare=False)

    @classmethod
    def from_reply(cls, reply: Any) -> Self:
        """Parse OpenAI's reply. Raises `UnexpectedReply`."""
        found = as_object(reply)
        choices = as_objects(found.get("choices"))
        return cls(
            id=str(found.get("id") or ""),
            object=str(found.get("object") or "chat.completion"),
            created=int(found.get("created") or 0),
            model=str(found.get("model") or ""),
            choices=[Choice.from_reply(choice, i) for i, choice in enumerate(choices)],
            usage=Usage.of_reply(found),
            timings=Timings.of_reply(found),
            system_fingerprint=found.get("system_fingerprint"),
            raw=reply,
        )

    @classmethod
    def from_native(cls, reply: Any, n_per_prompt: int = 1) -> Self:
        """Parse llama-server's native reply, which has no id ("") and no time (now).

        Several replies become several choices; usage counts each prompt once and every answer. Timings are those of
        the only reply: several overlap, and each choice's ``raw`` has its own. Raises `UnexpectedReply`.
        """
        replies = as_objects(reply) if isinstance(reply, list) else [as_object(reply)]
        return cls(
            id="",
            object="text_completion",
            created=int(time.time()),
            model=str(replies[0].get("model") or "") if replies else "",
            choices=[Choice.from_native(entry, i) for i, entry in enumerate(replies)],
            usage=_native_usage(replies, n_per_prompt),
            timings=Timings.of_reply(replies[0]) if len(replies) == 1 else None,
            raw=reply,
        )


def _stop_type(reply: Raw) -> StopType | None:
    """Return ``stop_type`` if it is known."""
    said = reply.get("stop_type")
    return StopType(said) if said in list(StopType) else None


def _native_usage(replies: list[Raw], n_per_prompt: int) -> Usage | None:
    """Return the token counts of native replies; None if ``response_fields`` has left them out."""
    if not all("tokens_evaluated" in entry and "tokens_predicted" in entry for entry in replies):
        return None
    n_prompt = sum(int(entry["tokens_evaluated"]) for entry in replies) // max(n_per_prompt, 1)
    n_completion = sum(int(entry["tokens_predicted"]) for entry in replies)
    return Usage(n_prompt, n_completion, n_prompt + n_completion)
