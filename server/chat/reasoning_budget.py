"""How many tokens thoughts may have, what is said when they are spent, and the constraint that sees to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from server.errors import InvalidRequest
from server.pool.spec import ChatParams
from server.structured.constraint import Constraint
from server.structured.reasoning_end import UNLIMITED, Ending, ReasoningEnd, ReasoningSwitch
from server.vocab import Vocab

_MESSAGE = "reasoning_budget_message"


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """``budget`` tokens of thoughts, or `UNLIMITED`, and ``message``, which ends those that would be longer."""

    budget: int = UNLIMITED
    message: str = ""


def allowance(asked: int | None, message: str | None, chat: ChatParams) -> ReasoningBudget:
    """What holds for a request that asks for this: its own, or the model's."""
    budget = chat.reasoning_budget if asked is None or asked == UNLIMITED else asked
    return ReasoningBudget(budget, chat.reasoning_budget_message if message is None else message)


def ended_by(
    allowed: ReasoningBudget,
    inner: Constraint | None,
    vocab: Vocab,
    tags: tuple[str, str],
    *,
    begun: str | None,
    other_ends: Sequence[str] = (),
    reopens: bool,
    switch: ReasoningSwitch | None = None,
) -> ReasoningEnd:
    """`inner` with an end to the thoughts.

    ``begun``: those that the prompt ends with, None for none; ``other_ends`` are texts that end thoughts beside
    their tag; ``reopens``: whether further thoughts may follow. Raises `InvalidRequest` for a message that would end
    thoughts itself.
    """
    opening, closing = tags
    closings = (closing, *other_ends)
    if any(end in allowed.message for end in (opening, *closings)):
        reason = f"must hold no markup that opens or ends thoughts ({opening}, {', '.join(closings)})"
        raise InvalidRequest(f"Field '{_MESSAGE}': {reason}", _MESSAGE)

    def tokens(text: str) -> tuple[int, ...]:
        return tuple(vocab.tokenize(text, add_special=False, parse_special=True)) if text else ()

    ending = Ending(
        opening.encode(),
        tuple(end.encode() for end in closings),
        tokens(allowed.message) + tokens(closing),
        allowed.budget,
        tokens(opening) if reopens else (),
    )
    return ReasoningEnd(ending, inner, vocab, n_begun=None if begun is None else len(tokens(begun)), switch=switch)
