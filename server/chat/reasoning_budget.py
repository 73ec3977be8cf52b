"""Limits the number of reasoning tokens with a constraint that ends the reasoning."""

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
    """``budget``: token limit, or `UNLIMITED`. ``message``: text that ends the reasoning at the limit."""

    budget: int = UNLIMITED
    message: str = ""


def allowance(asked: int | None, message: str | None, chat: ChatParams) -> ReasoningBudget:
    """Return the budget of a request: its own, or the model's."""
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
    """Wrap `inner` in a constraint that ends the reasoning.

    ``begun``: reasoning text at the prompt's end; None for none. ``other_ends``: texts that end reasoning besides
    the closing tag. ``reopens``: whether reasoning may start again. Raises `InvalidRequest` if the message contains
    the closing tag.
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
