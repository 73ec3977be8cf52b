"""Drops the oldest messages of a conversation that exceeds the context (OpenAI's ``truncation: auto``).

Messages are dropped in blocks of about an eighth of the context, counted in bytes from the start. So a growing
conversation keeps the same first message for many turns, and its cached prefix.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from server.chat.conversation import Conversation, Message, TextPart
from server.chat.prompt import render
from server.media.source import LoadedMedia
from server.pool.model import LoadedModel

MEDIA_BYTES = 2048
"""Assumed size of an image or a recording; a text of this size has about as many tokens."""
BLOCK_SHARE = 2
"""A block of messages has half as many bytes as the context has tokens: about an eighth of the context."""
ROOM_SHARE = 8
"""The reply gets at least this fraction of the context (1/8), unless the request's limit is lower."""
_INSTRUCTIONS = ("system", "developer")


def fits(n_prompt: int, n_ctx: int, max_tokens: int | None) -> bool:
    """Return whether a prompt of `n_prompt` tokens leaves room for a reply of `max_tokens` at most; None: no limit."""
    room = n_ctx // ROOM_SHARE if max_tokens is None else min(n_ctx // ROOM_SHARE, max_tokens)
    return n_prompt + max(room, 1) <= n_ctx


def truncated(
    conversation: Conversation, model: LoadedModel, media: LoadedMedia, max_tokens: int | None
) -> Conversation:
    """Return the conversation without as few of its oldest messages as possible.

    The first instructions and the last message are kept, and each kept tool result keeps its call. If the
    conversation is still too long, the engine rejects it. Blocks, so run it in a thread. Raises `InvalidRequest`.
    """
    n_ctx, messages = model.engine.n_ctx_seq, conversation.messages
    first = next((n for n, message in enumerate(messages) if message.role not in _INSTRUCTIONS), len(messages))
    cuts = _cut_points(messages, first, n_ctx // BLOCK_SHARE)

    def rest(cut: int) -> Conversation:
        return replace(conversation, messages=(*messages[:first], *messages[cut:]))

    found = bisect_left(
        cuts, True, key=lambda cut: fits(render(rest(cut), model).count(model, media), n_ctx, max_tokens)
    )
    return rest(cuts[min(found, len(cuts) - 1)]) if cuts else conversation


def _cut_points(messages: Sequence[Message], first: int, block_bytes: int) -> list[int]:
    """Return where the conversation after its instructions, from `first` on, may begin instead: in each block of
    `block_bytes` the first message that is no tool result, and the last message that is none.
    """
    ends = list(accumulate(map(_n_bytes, messages[first:]), initial=0))
    starts = [index for index in range(first + 1, len(messages)) if messages[index].role != "tool"]
    blocks = [(index, ends[index - first] // block_bytes) for index in (first, *starts)]
    return [later for (_, before), (later, block) in pairwise(blocks) if block > before or later == starts[-1]]


def _n_bytes(message: Message) -> int:
    parts = sum(len(part.text.encode()) if isinstance(part, TextPart) else MEDIA_BYTES for part in message.parts)
    calls = sum(len(call.name) + len(call.arguments.encode()) for call in message.calls)
    return parts + calls + len(message.reasoning.encode())
