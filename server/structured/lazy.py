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

if TYPE_CHECKING:  # importing llguidance takes time
    from server.structured.grammar.compiler import GrammarCompiler
    from server.structured.grammar.matcher import MatcherConstraint

TOKEN, WORD, PATTERN, PATTERN_FULL = range(4)
_FIELD = "grammar_triggers"


class Model(Protocol):
    """A model's vocabulary, and its compiler, which takes half a second to create and is created on demand."""

    vocab: Vocab

    @property
    def grammar(self) -> "GrammarCompiler": ...


def preserved(texts: tuple[str, ...], vocab: Vocab) -> frozenset[int]:
    """Return the control tokens with one of these texts. A text of several tokens is ignored."""
    tokenized = (vocab.tokenize(text, add_special=False, parse_special=True) for text in texts)
    return frozenset(tokens[0] for tokens in tokenized if len(tokens) == 1)


@dataclass(frozen=True, slots=True)
class Lazy:
    """The triggers of a lazy grammar.

    ``triggers``: ``{"type": 0, "value", "token"}`` or ``{"type", "value"}``. Type 1 is a word, 2 a pattern to search,
    and 3 a pattern for the whole text so far. ``preserved_texts``: texts of control tokens to render.
    """

    triggers: tuple[Mapping[str, Any], ...]
    preserved_texts: tuple[str, ...] = ()

    def shown(self, vocab: Vocab) -> list[dict[str, Any]]:
        """Return the triggers in llama-server's form: a word of one token is that token. Raises `InvalidRequest`."""
        preserved_tokens, converted = preserved(self.preserved_texts, vocab), []
        for trigger in self.triggers:
            shown = dict(trigger)
            if trigger["type"] == WORD:
                tokens = vocab.tokenize(trigger["value"], add_special=False, parse_special=True)
                if len(tokens) == 1:
                    if tokens[0] not in preserved_tokens:
                        word = trigger["value"]
                        raise _error(f"Grammar trigger word should be marked as preserved token: {word}")
                    shown = {"type": TOKEN, "value": trigger["value"], "token": tokens[0]}
            elif trigger["type"] == TOKEN and not 0 <= trigger["token"] < vocab.n_tokens:
                raise _error(f"there is no token {trigger['token']}")
            converted.append(shown)
        return converted

    def triggered(
        self, constraint: "MatcherConstraint | None", vocab: Vocab, grammar: "GrammarCompiler"
    ) -> Constraint | None:
        """Wrap `constraint` so that it applies from the first trigger on. Raises `InvalidRequest`."""
        shown = self.shown(vocab)
        if not shown:
            raise _error("Error: no triggers set for lazy grammar!")
        if constraint is None:
            return None
        from server.structured.grammar.triggered import LazyGrammar, Rules, TriggeredConstraint, compiled_patterns

        texts = [_token_and_text(trigger, vocab) for trigger in shown if trigger["type"] in (TOKEN, WORD)]
        patterns = tuple(_search_pattern(each) for each in shown if each["type"] in (PATTERN, PATTERN_FULL))
        try:
            compiled_patterns(patterns)
        except ValueError as error:
            raise _error(str(error)) from None
        markers = grammar.tokens.markers([text for _, text in texts])
        for token, text in texts:
            if not (grammar.tokens.feed(constraint.fork(), text) or constraint.allows(token)):
                raise _error(
                    f"the grammar can't begin with {text.decode(errors='replace')!r}; it describes its trigger, too"
                )
        words = tuple(text for token, text in texts if token < 0)
        tokens = frozenset(token for token, _ in texts if token >= 0)
        return TriggeredConstraint(Rules((), markers, lazy=LazyGrammar(constraint, words, tokens, patterns)))


def compiled(response_format: ResponseFormat | None, lazy: Lazy | None, model: Model) -> Constraint | None:
    """Return the constraint of a text, from its first token on or from the first trigger. Raises `InvalidRequest`."""
    constraint = None if response_format is None else response_format.constraint(model.grammar)
    return constraint if lazy is None else lazy.triggered(constraint, model.vocab, model.grammar)


def _error(reason: str) -> InvalidRequest:
    return InvalidRequest(f"Field '{_FIELD}': {reason}", _FIELD)


def _search_pattern(trigger: Mapping[str, Any]) -> str:
    """Return the pattern to search; one for the whole text gets anchors (llama.cpp common/sampling.cpp)."""
    pattern = str(trigger["value"])
    if trigger["type"] == PATTERN:
        return pattern
    return f"{'' if pattern.startswith('^') else '^'}{pattern}{'' if pattern.endswith('$') else '$'}"


def _token_and_text(trigger: Mapping[str, Any], vocab: Vocab) -> tuple[int, bytes]:
    """Return the token of a trigger, -1 for a word, and the text that the grammar starts with."""
    if trigger["type"] == WORD:
        return -1, str(trigger["value"]).encode()
    return trigger["token"], vocab.piece(trigger["token"])
