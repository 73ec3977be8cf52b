"""Compiles grammars to constraints for one model's vocabulary. Recent results are cached, and concurrent requests for
the same grammar share one compilation.
"""

import hashlib
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar, cast

import llguidance

from server.errors import InvalidRequest
from server.structured.grammar.attempt import CompileLater, may_wait
from server.structured.grammar.build import (
    LarkGrammar,
    SchemaGrammar,
    gbnf_grammar,
    lark_grammar,
    matcher_of,
    schema_grammar,
)
from server.structured.grammar.embedded_text import EmbeddedText, EmbeddedTexts, TextTokens
from server.structured.grammar.json_schema import ANY_OBJECT
from server.structured.grammar.lark import literal, without_anchors
from server.structured.grammar.limits import MAX_CALLS_CHARS, MAX_TEXT_CHARS
from server.structured.grammar.markers import MarkerIndex, Markers
from server.structured.grammar.matcher import MatcherConstraint, Recipe
from server.structured.grammar.panics import contained
from server.structured.grammar.sandbox import GBNF, GRAMMAR, LARK, SCHEMA, Sandbox
from server.structured.grammar.schema.plain import is_plain
from server.structured.grammar.tokenizer import TokenTable, end_tokens, special_tokens
from server.structured.grammar.unique.items import ItemEnds, UniqueItems
from server.vocab import Vocab

T = TypeVar("T")


class _Entry(Generic[T]):
    def __init__(self) -> None:
        self.lock = Lock()
        self.made: list[T] = []
        self.refused: InvalidRequest | None = None

    def get(self, make: Callable[[], T]) -> T:
        if not self.lock.acquire(blocking=may_wait()):
            raise CompileLater
        try:
            if self.refused is not None:
                raise InvalidRequest(self.refused.message, self.refused.param)
            if not self.made:
                try:
                    self.made.append(make())
                except InvalidRequest as error:
                    self.refused = error
                    raise
            return self.made[0]
        finally:
            self.lock.release()


class NewestValues(Generic[T]):
    """Keeps the `size` values that were used last, and refusals like values. Safe in any thread.

    It keeps a digest of each key: a client's grammar may have megabytes.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = Lock()
        self._entries: OrderedDict[bytes, _Entry[T]] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value of `key`, made by `make` where it is missing."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            entry = self._entries.setdefault(digest, _Entry())
            self._entries.move_to_end(digest)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        return entry.get(make)


_CACHED = 32  # compiled grammars kept; agents send the same tools with every request


class GrammarCompiler:
    """Makes constraints; every method may be called from any thread and raises InvalidRequest for a bad grammar.

    The vocabulary is read at the first grammar, or by `prepare`: about a second for 150,000 tokens, for most of which
    llguidance keeps the interpreter's lock.

    ``sandbox``: compiles each grammar first that is not known to be cheap; then methods may raise `CompileLater` and
    `CompileCancelled`, too (`attempt`). Without one, grammars must be known to be harmless.
    """

    def __init__(self, vocab: Vocab, sandbox: Sandbox | None = None) -> None:
        self._vocab = vocab
        self._sandbox = sandbox
        self._ends = frozenset(end_tokens(vocab))
        self._lock = Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._table = b""
        self._item_ends: ItemEnds | None = None
        self._text_tokens: TextTokens | None = None
        self._compiled: NewestValues[MatcherConstraint] = NewestValues(_CACHED)
        self._made: NewestValues[object] = NewestValues(_CACHED)
        self._index = MarkerIndex(vocab)

    def prepare(self) -> None:
        """Read the vocabulary now."""
        self._all_tokens()

    def json_schema(self, schema: object) -> MatcherConstraint:
        """JSON that validates against `schema` (Draft 2020-12, or the draft that its `$schema` names)."""
        try:
            text = json.dumps(schema)
        except (ValueError, TypeError, RecursionError):  # no JSON, or too deep: `written` raises the specific error
            return self._json_schema(schema, None)
        return self._compiled.get(f"json_schema {text}", lambda: self._json_schema(schema, text)).fork()

    def _json_schema(self, schema: object, text: str | None) -> MatcherConstraint:
        if self._sandbox is None or text is None or is_plain(schema):
            grammar = schema_grammar(schema)
        else:
            found = self._sandbox.compile(self._sent_tokens(), SCHEMA, text.encode(), "json_schema")
            grammar = SchemaGrammar.from_json(schema, found)
        recipe = Recipe("json_schema", text or "", "json_schema")
        made = self._constraint(grammar.matcher(self._all_tokens()), recipe)
        if grammar.unique is None:
            return made
        return UniqueItems.over(made, grammar.unique, self._all_item_ends(), grammar.matcher_of_bytes())

    def made_anew(self, recipe: Recipe) -> MatcherConstraint:
        """A constraint that a compiler over the same vocabulary has made, and that has taken ``recipe.begun`` since."""
        if recipe.kind == "json_schema":
            made = self.json_schema(json.loads(recipe.text))
        elif recipe.kind == "lark":
            made = self.lark(recipe.text, max_chars=MAX_CALLS_CHARS)
        else:
            made = self._of_grammar(recipe.text, recipe.param)
        if recipe.begun:
            self.markers([recipe.begun.decode()]).feed(made, recipe.begun)
        return made

    def json_object(self) -> MatcherConstraint:
        """Any JSON object."""
        return self.json_schema(ANY_OBJECT)

    def gbnf(self, text: str) -> MatcherConstraint:
        """llama.cpp's grammar format (grammars/README.md), matched exactly as written."""
        return self._compiled.get(f"gbnf {text}", lambda: self._gbnf(text)).fork()

    def _gbnf(self, text: str) -> MatcherConstraint:
        if self._sandbox is None:
            return self._of_lark(gbnf_grammar(text, self.token_id, self._ends))
        found = self._sandbox.compile(self._sent_tokens(), GBNF, json.dumps(text).encode(), "grammar")
        return self._of_lark(LarkGrammar.from_json(found))

    def lark(self, text: str, *, max_chars: int = MAX_TEXT_CHARS) -> MatcherConstraint:
        """llguidance's dialect of Lark: rule `start`, inline ``%json {...}``."""
        return self._compiled.get(f"lark {max_chars} {text}", lambda: self._lark(text, max_chars)).fork()

    def _lark(self, text: str, max_chars: int) -> MatcherConstraint:
        if self._sandbox is None:
            special = (token for token in special_tokens(self._vocab) if token not in self._ends)
            grammar = lark_grammar(text, max_chars, special)
        else:
            request = json.dumps([text, max_chars]).encode()
            grammar = LarkGrammar.from_json(self._sandbox.compile(self._sent_tokens(), LARK, request, "grammar"))
        made = self._of_lark(grammar)
        if not grammar.texts:
            return made
        made.recipe = Recipe("lark", text, grammar.param)
        texts = tuple(
            EmbeddedText(
                *(self._of_lark(inner), place.get("escaped", False), place.get("end", "").encode()),
                tuple(each.encode() for each in place.get("never", ())),
            )
            for inner, place in grammar.texts
        )
        return EmbeddedTexts(made, texts, grammar.hole, self._all_text_tokens())

    def _of_lark(self, grammar: LarkGrammar) -> MatcherConstraint:
        recipe = Recipe("grammar", grammar.text, grammar.param)
        return self._constraint(grammar.matcher(self._all_tokens()), recipe)

    def markers(self, texts: Sequence[str]) -> Markers:
        """Return how the vocabulary tokenizes these markers in free text."""
        with self._lock:
            return self._index.markers([text.encode() for text in texts])

    def remembered(self, key: str, make: Callable[[], T]) -> T:
        """Return `make()`, cached by key; for results that combine several grammars."""
        return cast(T, self._made.get(key, make))

    def regex(self, pattern: str) -> MatcherConstraint:
        """The whole output matches `pattern` (Rust regex syntax, no look-around); `^` and `$` at its ends are fine."""
        if len(pattern) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the regex has {len(pattern)} characters, {MAX_TEXT_CHARS} are allowed", "regex")
        grammar = llguidance.LLMatcher.grammar_from_regex(without_anchors(pattern))
        return self._of_grammar(grammar, "regex", "invalid regex")

    def choice(self, options: Sequence[str]) -> MatcherConstraint:
        """Exactly one of `options`."""
        if not options:
            raise InvalidRequest("choice needs at least one option", "choice")
        if sum(map(len, options)) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the choices have more than {MAX_TEXT_CHARS} characters in all", "choice")
        # One terminal: alternatives that begin alike must stay open side by side.
        return self._of_grammar("start: CHOICE\nCHOICE: " + "\n  | ".join(map(literal, options)) + "\n", "choice")

    def token_id(self, text: str) -> int | None:
        """Return the one token, special or not, whose whole text is `text`; None if there is none."""
        tokens = self._vocab.tokenize(text, add_special=False, parse_special=True)
        if len(tokens) == 1 and self._vocab.piece(tokens[0], special=True) == text.encode():
            return tokens[0]
        return None

    def control_token(self, text: str) -> int | None:
        """Like `token_id`, for control tokens only: those that no text of a grammar matches."""
        token = self.token_id(text)
        return token if token is not None and not self._vocab.piece(token, special=False) else None

    def _of_grammar(self, grammar: str, param: str, prefix: str = "") -> MatcherConstraint:
        return self._compiled.get(grammar, lambda: self._compiled_grammar(grammar, param, prefix or param)).fork()

    def _compiled_grammar(self, grammar: str, param: str, prefix: str) -> MatcherConstraint:
        if self._sandbox is not None:
            self._sandbox.compile(self._sent_tokens(), GRAMMAR, json.dumps([grammar, param, prefix]).encode(), param)
        return self._constraint(
            matcher_of(self._all_tokens(), grammar, param, prefix), Recipe("grammar", grammar, param)
        )

    def _constraint(self, matcher: llguidance.LLMatcher, recipe: Recipe) -> MatcherConstraint:
        return MatcherConstraint(matcher, self._vocab.n_tokens, self._ends, recipe.param, recipe)

    @contained
    def _all_tokens(self) -> llguidance.LLTokenizer:
        with self._lock:
            if self._tokenizer is None:
                table = TokenTable.of(self._vocab)
                self._tokenizer = table.tokenizer()
                if self._sandbox is not None:
                    self._table = pickle.dumps(table)
            return self._tokenizer

    def _sent_tokens(self) -> bytes:
        """The vocabulary as the sandbox reads it."""
        self._all_tokens()
        return self._table

    def _all_item_ends(self) -> ItemEnds:
        with self._lock:
            if self._item_ends is None:
                self._item_ends = ItemEnds(self._vocab)
            return self._item_ends

    def _all_text_tokens(self) -> TextTokens:
        markers = self.markers([])
        with self._lock:
            if self._text_tokens is None:
                self._text_tokens = TextTokens(self._vocab, markers)
            return self._text_tokens
