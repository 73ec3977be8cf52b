"""Shortens a conversation that exceeds the context.

A reply of several rounds shortens the tool results of the last one. OpenAI's ``truncation: auto`` drops the oldest
messages in blocks of about an eighth of the context, counted in bytes from the start. So a growing
conversation keeps the same first message for many turns, and its cached prefix.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from server.chat.conversation import Conversation, Message, Part, TextPart, text_content
from server.chat.prompt import render
from server.media.source import LoadedMedia
from server.pool.model import LoadedModel

MEDIA_BYTES = 2048
"""Assumed size of an image or audio part: text of this size has about as many tokens."""
BLOCK_SHARE = 2
"""A block of messages has half as many bytes as the context has tokens: about an eighth of the context."""
REPLY_SHARE = 8
"""The reply gets at least this fraction of the context (1/8), unless the request's limit is lower."""
RESULT_SHARE = 16
"""A tool result is not shortened to fewer characters than this fraction of the context's tokens (1/16)."""
_INSTRUCTIONS = ("system", "developer")


def fits(n_prompt: int, n_ctx: int, max_tokens: int | None) -> bool:
    """Return whether a prompt of `n_prompt` tokens leaves space for a reply of `max_tokens` (None = no limit)."""
    n_reply = n_ctx // REPLY_SHARE if max_tokens is None else min(n_ctx // REPLY_SHARE, max_tokens)
    return n_prompt + max(n_reply, 1) <= n_ctx


def truncated(
    conversation: Conversation, model: LoadedModel, media: LoadedMedia, max_tokens: int | None
) -> Conversation:
    """Return the conversation after dropping as few of its oldest messages as possible.

    The first instructions and the last message stay, and so does the call of each tool result that stays. If the
    conversation is still too long, the engine rejects it. Blocking, for a worker thread. Raises `InvalidRequest`.
    """
    n_ctx, messages = model.engine.n_ctx_seq, conversation.messages
    first = next((n for n, message in enumerate(messages) if message.role not in _INSTRUCTIONS), len(messages))
    starts = _start_points(messages, first, n_ctx // BLOCK_SHARE)

    def shortened(start: int) -> Conversation:
        return replace(conversation, messages=(*messages[:first], *messages[start:]))

    found = bisect_left(
        starts, True, key=lambda start: fits(render(shortened(start), model).count(model, media), n_ctx, max_tokens)
    )
    return shortened(starts[min(found, len(starts) - 1)]) if starts else conversation


def with_short_results(
    conversation: Conversation, n_results: int, model: LoadedModel, media: LoadedMedia, max_tokens: int | None
) -> Conversation:
    """Return a conversation that is too long with the texts of its last `n_results` messages shortened so that a reply
    fits.

    A text keeps at least `n_ctx // RESULT_SHARE` characters, even if that is too long. Blocking, for a worker thread.
    Raises `InvalidRequest`.
    """
    n_ctx, at = model.engine.n_ctx_seq, len(conversation.messages) - n_results
    messages, results = conversation.messages[:at], conversation.messages[at:]

    def shortened(n_chars: int) -> Conversation:
        return replace(conversation, messages=(*messages, *(_shortened(result, n_chars) for result in results)))

    def is_too_long(n_chars: int) -> bool:
        return not fits(render(shortened(n_chars), model).count(model, media), n_ctx, max_tokens)

    shortest, longest = n_ctx // RESULT_SHARE, max(len(result.text) for result in results)
    if longest <= shortest:
        return conversation
    lengths = range(shortest, longest, max(shortest // 4, 1))
    return shortened(lengths[max(bisect_left(lengths, True, key=is_too_long) - 1, 0)])


def _shortened(message: Message, n_chars: int) -> Message:
    return replace(message, content=text_content([_first_chars(part, n_chars) for part in message.parts]))


def _first_chars(part: Part, n_chars: int) -> Part:
    if not isinstance(part, TextPart) or len(part.text) <= n_chars:
        return part
    return replace(part, text=f"{part.text[:n_chars]}\n[cut off: {len(part.text) - n_chars} more characters]")


def _start_points(messages: Sequence[Message], first: int, block_bytes: int) -> list[int]:
    """Return the messages that may become the first one after the instructions, instead of `first`.

    These are the first message of each block of `block_bytes` that is no tool result, and the last such message.
    """
    ends = list(accumulate(map(_n_bytes, messages[first:]), initial=0))
    starts = [index for index in range(first + 1, len(messages)) if messages[index].role != "tool"]
    blocks = [(index, ends[index - first] // block_bytes) for index in (first, *starts)]
    return [later for (_, before), (later, block) in pairwise(blocks) if block > before or later == starts[-1]]


def _n_bytes(message: Message) -> int:
    parts = sum(len(part.text.encode()) if isinstance(part, TextPart) else MEDIA_BYTES for part in message.parts)
    calls = sum(len(call.name) + len(call.arguments.encode()) for call in message.calls)
    return parts + calls + len(message.reasoning.encode())
