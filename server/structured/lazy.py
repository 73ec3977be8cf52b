"""A grammar that applies from a trigger on.

llama-server's ``grammar_lazy`` (tools/server/server-schema.cpp, server_grammar_trigger).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from server.errors import InvalidRequest
from server.structured.constraint import Constraint
from server.structured.response_format import ResponseFormat
from server.vocab import Vocab

if TYPE_CHECKING:  # llguidance takes its time to import
    from server.structured.grammar.compiler import GrammarCompiler
    from server.structured.grammar.matcher import MatcherConstraint

TOKEN, WORD, PATTERN, PATTERN_FULL = range(4)
_FIELD = "grammar_triggers"


class Model(Protocol):
    """The vocabulary of a model, and its compiler, which takes half a second to create and is asked for when needed."""

    vocab: Vocab

    @property
    def grammar(self) -> "GrammarCompiler": ...


def preserved(texts: tuple[str, ...], vocab: Vocab) -> frozenset[int]:
    """Return the control tokens whose text is shown; a text of several tokens preserves nothing."""
    found = (vocab.tokenize(text, add_special=False, parse_special=True) for text in texts)
    return frozenset(tokens[0] for tokens in found if len(tokens) == 1)


@dataclass(frozen=True, slots=True)
class Lazy:
    """``triggers``: ``{"type": 0, "value", "token"}``, or ``{"type", "value"}`` with type 1 (a word), 2 (a pattern that
    is looked for) or 3 (one for the whole text so far).

    ``kept``: the texts of control tokens that are shown.
    """

    triggers: tuple[Mapping[str, Any], ...]
    kept: tuple[str, ...] = ()

    def shown(self, vocab: Vocab) -> list[dict[str, Any]]:
        """Return the triggers in llama-server's form: a word of one token is that token. Raises `InvalidRequest`."""
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
            elif trigger["type"] == TOKEN and not 0 <= trigger["token"] < vocab.n_tokens:
                raise _refused(f"there is no token {trigger['token']}")
            found.append(shown)
        return found

    def held(
        self, constraint: "MatcherConstraint | None", vocab: Vocab, grammar: "GrammarCompiler"
    ) -> Constraint | None:
        """Return the constraint that `constraint` applies from the first trigger on. Raises `InvalidRequest`."""
        shown = self.shown(vocab)
        if not shown:
            raise _refused("Error: no triggers set for lazy grammar!")
        if constraint is None:
            return None
        from server.structured.grammar.triggered import LazyGrammar, Rules, TriggeredConstraint, compiled_patterns

        texts = [_text(trigger, vocab) for trigger in shown if trigger["type"] in (TOKEN, WORD)]
        patterns = tuple(_searched(each) for each in shown if each["type"] in (PATTERN, PATTERN_FULL))
        try:
            compiled_patterns(patterns)
        except ValueError as error:
            raise _refused(str(error)) from None
        markers = grammar.tokens.markers([text for _, text in texts])
        for token, text in texts:
            if not (grammar.tokens.feed(constraint.fork(), text) or constraint.allows(token)):
                raise _refused(
                    f"the grammar can't begin with {text.decode(errors='replace')!r}; it describes its trigger, too"
                )
        words = tuple(text for token, text in texts if token < 0)
        tokens = frozenset(token for token, _ in texts if token >= 0)
        return TriggeredConstraint(Rules((), markers, lazy=LazyGrammar(constraint, words, tokens, patterns)))


def compiled(shape: ResponseFormat | None, lazy: Lazy | None, model: Model) -> Constraint | None:
    """Return the constraint of a text, from its first token on or from the first trigger. Raises `InvalidRequest`."""
    constraint = None if shape is None else shape.constraint(model.grammar)
    return constraint if lazy is None else lazy.held(constraint, model.vocab, model.grammar)


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Field '{_FIELD}': {reason}", _FIELD)


def _searched(trigger: Mapping[str, Any]) -> str:
    """Return a pattern to look for; one for the whole text gets its anchors (llama.cpp common/sampling.cpp)."""
    pattern = str(trigger["value"])
    if trigger["type"] == PATTERN:
        return pattern
    return f"{'' if pattern.startswith('^') else '^'}{pattern}{'' if pattern.endswith('$') else '$'}"


def _text(trigger: Mapping[str, Any], vocab: Vocab) -> tuple[int, bytes]:
    """Return the token of a trigger, -1 for a word, and the text that the grammar starts with."""
    if trigger["type"] == WORD:
        return -1, str(trigger["value"]).encode()
    return trigger["token"], vocab.piece(trigger["token"])
