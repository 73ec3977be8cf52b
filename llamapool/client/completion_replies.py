"""Replies of chat, completion and infill: one class for OpenAI's format and for llama-server's."""

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
    """Token counts of a prompt and its reply."""

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
    """Timings of a request: tokens, milliseconds, and tokens per second."""

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
        numbers: Raw = {each.name: timings.get(each.name) or 0 for each in fields(cls)}
        values: Raw = {name: int(n) if name.endswith("_n") else float(n) for name, n in numbers.items()}
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
    """A choice. Chats have ``message``, completions ``text``. ``raw``: its JSON (tokens, logprobs, slot)."""

    index: int
    message: Message | None = None
    text: str | None = None
    finish_reason: str | None = None
    raw: Raw = field(default_factory=dict, repr=False, compare=False)

    @property
    def stop_type(self) -> StopType | None:
        """The reason why a native completion ended, or None if it is unknown."""
        return _stop_type(self.raw)

    @classmethod
    def from_reply(cls, choice: Raw, position: int) -> Self:
        """Parse an element of OpenAI's ``choices``."""
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
        """Parse a native reply, or an element of an array of replies."""
        reason = _FINISH_REASONS.get(_stop_type(reply) or StopType.NONE)
        return cls(index=position, text=reply.get("content"), finish_reason=reason, raw=reply)


@dataclass(frozen=True, slots=True)
class CompletionResponse:
    """A whole reply. ``raw`` is its JSON: an array if a native request had several prompts or ``n_cmpl``."""

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
        """Parse llama-server's native reply. Its ``id`` is "", and ``created`` is the current time.

        Several replies become several choices. Usage counts each prompt once, and all completions. Timings are None for
        several replies; ``raw`` of a choice has its own. Raises `UnexpectedReply`.
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
    """Return ``stop_type`` if it is a known value."""
    value = reply.get("stop_type")
    return StopType(value) if value in list(StopType) else None


def _native_usage(replies: list[Raw], n_per_prompt: int) -> Usage | None:
    """Return the token counts of native replies, or None if ``response_fields`` excludes them."""
    if not all("tokens_evaluated" in entry and "tokens_predicted" in entry for entry in replies):
        return None
    n_prompt = sum(int(entry["tokens_evaluated"]) for entry in replies) // max(n_per_prompt, 1)
    n_completion = sum(int(entry["tokens_predicted"]) for entry in replies)
    return Usage(n_prompt, n_completion, n_prompt + n_completion)
