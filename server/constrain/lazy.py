"""A grammar that waits: it holds from a trigger on.

llama-server's ``grammar_lazy`` (tools/server/server-schema.cpp, server_grammar_trigger).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.constrain.constraint import Constraint
from server.constrain.shape import Shape
from server.errors import InvalidRequest
from server.vocab import Vocab

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.constrain.grammar.compiler import GrammarCompiler
    from server.constrain.grammar.from_trigger import Triggers
    from server.constrain.grammar.matcher import MatcherConstraint

TOKEN, WORD = 0, 1
_FIELD = "grammar_triggers"


def preserved(texts: tuple[str, ...], vocab: Vocab) -> frozenset[int]:
    """The control tokens whose text is shown; a text of several tokens preserves nothing."""
    found = (vocab.tokenize(text, add_special=False, parse_special=True) for text in texts)
    return frozenset(tokens[0] for tokens in found if len(tokens) == 1)


@dataclass(frozen=True, slots=True)
class Lazy:
    """``triggers``: ``{"type": 0, "value", "token"}`` or ``{"type": 1, "value"}``.

    ``kept``: the texts of control tokens that are shown.
    """

    triggers: tuple[Mapping[str, Any], ...]
    kept: tuple[str, ...] = ()

    def shown(self, vocab: Vocab) -> list[dict[str, Any]]:
        """As llama-server shows them: a word of one token is that token. Raises `InvalidRequest`."""
        kept, found = preserved(self.kept, vocab), []
        for trigger in self.triggers:
            shown = dict(trigger)
            if trigger["type"] == WORD:
                tokens = vocab.tokenize(trigger["value"], add_special=False, parse_special=True)
                if len(tokens) == 1:
                    if tokens[0] not in kept:
                        word = trigger["value"]
                        raise _refused(f"Grammar trigger word should be marked as preserved token: {word}")
                    shown = {"type": TOKEN, "value": trigger["value"], "token": tokens[0]}
            elif not 0 <= trigger["token"] < vocab.n_tokens:
                raise _refused(f"there is no token {trigger['token']}")
            found.append(shown)
        return found

    def held(
        self, constraint: "MatcherConstraint | None", vocab: Vocab, grammar: "GrammarCompiler"
    ) -> Constraint | None:
        """`constraint`, from the first trigger on. Raises `InvalidRequest`."""
        shown = self.shown(vocab)
        if not shown:
            raise _refused("Error: no triggers set for lazy grammar!")
        if constraint is None:
            return None
        from server.constrain.grammar.from_trigger import LazyGrammar

        lazy = LazyGrammar(constraint, _triggers(shown, vocab, grammar))
        for trigger in shown:
            token, text = trigger.get("token", -1), _text(trigger, vocab)
            if not (lazy.takes(text) or constraint.fork().allows(token)):
                said = text.decode(errors="replace")
                raise _refused(f"the grammar can't begin with {said!r}; it describes its trigger, too")
        return lazy


def compiled(shape: Shape | None, lazy: Lazy | None, vocab: Vocab, grammar: "GrammarCompiler") -> Constraint | None:
    """The constraint of a text, from its first token on or from the first trigger. Raises `InvalidRequest`."""
    constraint = None if shape is None else shape.constraint(grammar)
    return constraint if lazy is None else lazy.held(constraint, vocab, grammar)


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Field '{_FIELD}': {reason}", _FIELD)


def _triggers(shown: list[dict[str, Any]], vocab: Vocab, grammar: "GrammarCompiler") -> "Triggers":
    from server.constrain.grammar.from_trigger import Triggers

    words = tuple(trigger["value"].encode() for trigger in shown if trigger["type"] == WORD)
    tokens = frozenset(trigger["token"] for trigger in shown if trigger["type"] == TOKEN)
    markers = grammar.markers([_text(trigger, vocab).decode("utf-8", "replace") for trigger in shown])
    return Triggers(words, tokens, markers)


def _text(trigger: Mapping[str, Any], vocab: Vocab) -> bytes:
    """What the grammar is to begin with."""
    if trigger["type"] == WORD:
        return str(trigger["value"]).encode()
    return vocab.piece(trigger["token"])
