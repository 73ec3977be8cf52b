"""Compiles grammars to constraints for one model's vocabulary. Recent results are cached, and concurrent requests for
the same grammar share one compilation.
"""

import hashlib
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar, cast

import llguidance

from server.errors import InvalidRequest
from server.structured.grammar.attempt import CompileLater, current
from server.structured.grammar.build import SCHEMA, Grammar, Kind, build
from server.structured.grammar.embedded_text import EmbeddedText, EmbeddedTexts
from server.structured.grammar.lark import without_anchors
from server.structured.grammar.limits import MAX_TEXT_CHARS
from server.structured.grammar.matcher import MatcherConstraint, Recipe, contained
from server.structured.grammar.sandbox import Sandbox
from server.structured.grammar.schema.plain import is_plain
from server.structured.grammar.text_tokens import TextTokens
from server.structured.grammar.tokenizer import Tokenizer, TokenTable
from server.structured.grammar.unique_items import Cursor, UniqueItems, UniquePlaces
from server.vocab import Vocab

T = TypeVar("T")


class LruCache(Generic[T]):
    """The `size` most recently used values or `InvalidRequest` errors. Thread-safe.

    Keys are stored as digests, because a client's grammar may have megabytes.
    """

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, Lock()
        self._entries: OrderedDict[bytes, tuple[Lock, list[T | InvalidRequest]]] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value of `key`, created by `make` if it is missing.

        Raises `CompileLater` if another thread is creating it and this one must not wait.
        """
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            lock, result = self._entries.setdefault(digest, (Lock(), []))
            self._entries.move_to_end(digest)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        if not lock.acquire(blocking=current() is not None):
            raise CompileLater
        try:
            if not result:
                result.append(make())
        except InvalidRequest as error:
            result.append(error)
        finally:
            lock.release()
        if isinstance(result[0], InvalidRequest):
            raise InvalidRequest(result[0].message, result[0].param)
        return result[0]


_CACHE_SIZE = 32  # compiled grammars; agents send the same tools with every request


class GrammarCompiler:
    """Compiles grammars to constraints. Thread-safe. Methods raise `InvalidRequest` for an invalid grammar.

    The vocabulary is read for the first grammar, or by `prepare`. This takes about a second for 150,000 tokens, and
    llguidance holds the GIL for most of it.

    ``sandbox``: first compiles each grammar that is not known to be cheap, so methods may also raise `CompileLater` and
    `CompileCancelled` (`attempt`). Without a sandbox, grammars must be trusted.
    """

    def __init__(self, vocab: Vocab, sandbox: Sandbox | None = None) -> None:
        self._vocab = vocab
        self._sandbox = sandbox
        self._lock = Lock()
        self._tokenizer: Tokenizer | None = None
        self._table = b""
        self._compiled: LruCache[MatcherConstraint] = LruCache(_CACHE_SIZE)
        self._remembered: LruCache[object] = LruCache(_CACHE_SIZE)
        self.tokens = TextTokens(vocab)

    def json_schema(self, schema: object) -> MatcherConstraint:
        """Return a constraint to JSON that validates against `schema` (its `$schema`, by default draft 2020-12)."""
        return self._cached("schema", schema, SCHEMA)

    def recreate(self, recipe: Recipe) -> MatcherConstraint:
        """Return a constraint that another compiler with the same vocabulary created, after ``recipe.begun``."""
        constraint = self._cached(*json.loads(recipe.request))
        return self.after(constraint, recipe.begun.decode()) or constraint

    def after(self, constraint: MatcherConstraint, text: str) -> MatcherConstraint | None:
        """Return a copy of the constraint after a text; None if the constraint rejects the text."""
        fork, encoded = constraint.fork(), text.encode()
        fork.recipe = constraint.recipe._replace(begun=encoded)
        return fork if self.tokens.feed(fork, encoded) else None

    def _cached(self, kind: Kind, request: Any, param: str, *, is_own: bool = False) -> MatcherConstraint:
        """Return a copy of the cached constraint of a request for `build`.

        ``param``: the field that errors name. ``is_own``: the grammar is this project's, and cheap.
        """
        try:
            text = json.dumps([kind, request, param])
        except (ValueError, TypeError, RecursionError):  # not JSON, or too deep: `build` raises the specific error
            return self._compile(kind, request, param, "")
        return self._compiled.get(text, lambda: self._compile(kind, request, param, text, is_own=is_own)).fork()

    def _compile(self, kind: Kind, request: Any, param: str, text: str, *, is_own: bool = False) -> MatcherConstraint:
        if self._sandbox is None or not text or is_own or (kind == "schema" and is_plain(request)):
            grammar = build(kind, request, lambda: TokenTable.of(self._vocab))
        else:
            self.prepare()
            grammar = Grammar.from_json(self._sandbox.compile(self._vocabulary(), text.encode(), param))
        constraint = self._constraint(grammar, request, text)
        if grammar.unique is not None:
            self.tokens.build("quotes", "items")
            return UniqueItems(constraint, Cursor(UniquePlaces(grammar.unique).root), self.tokens)
        if not grammar.texts:
            return constraint
        texts = tuple(
            EmbeddedText(
                self._constraint(inner, None, ""),
                escaped=position.get("escaped", False),
                end=position.get("end", "").encode(),
                never=tuple(each.encode() for each in position.get("never", ())),
            )
            for inner, position in grammar.texts
        )
        self.tokens.build("plain", "text", "escapes")
        return EmbeddedTexts(constraint, texts, grammar.hole, self.tokens)

    def _constraint(self, grammar: Grammar, request: Any, text: str) -> MatcherConstraint:
        tokenizer = self.prepare()
        return MatcherConstraint(grammar.matcher(tokenizer, request), tokenizer, grammar.param, Recipe(text))

    def gbnf(self, text: str) -> MatcherConstraint:
        """Return a constraint to a GBNF grammar (llama.cpp grammars/README.md), matched exactly as written."""
        return self._cached("gbnf", text, "grammar")

    def lark(self, text: str, *, max_chars: int = MAX_TEXT_CHARS) -> MatcherConstraint:
        """Return a constraint to a grammar in llguidance's dialect of Lark: rule `start`, inline ``%json {...}``."""
        return self._cached("lark", [text, max_chars], "grammar")

    def own_lark(self, text: str) -> MatcherConstraint:
        """Return a constraint to Lark that this project has written, compiled without the sandbox."""
        grammar = llguidance.LLMatcher.grammar_from_lark(text)
        return self._cached("grammar", [grammar, "grammar", "grammar"], "grammar", is_own=True)

    def remembered(self, key: str, make: Callable[[], T]) -> T:
        """Return the result of `make()`, cached by key, for results that combine several grammars."""
        return cast(T, self._remembered.get(key, make))

    def regex(self, pattern: str) -> MatcherConstraint:
        """Return a constraint to text that matches `pattern` as a whole (Rust regex syntax, no look-around)."""
        if len(pattern) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the regex has {len(pattern)} characters, {MAX_TEXT_CHARS} are allowed", "regex")
        grammar = llguidance.LLMatcher.grammar_from_regex(without_anchors(pattern))
        return self._cached("grammar", [grammar, "regex", "invalid regex"], "regex")

    def choice(self, options: Sequence[str]) -> MatcherConstraint:
        """Return a constraint to exactly one of `options`."""
        if not options:
            raise InvalidRequest("choice needs at least one option", "choice")
        if sum(map(len, options)) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the choices have more than {MAX_TEXT_CHARS} characters in all", "choice")
        # One terminal, so that options with a common prefix remain possible at the same time.
        grammar = "start: CHOICE\nCHOICE: " + "\n  | ".join(map(json.dumps, options)) + "\n"
        return self._cached("grammar", [grammar, "choice", "choice"], "choice")

    def control_token(self, text: str) -> int | None:
        """Return the control token whose whole text is `text`; None for none. Text in a grammar does not match it."""
        tokens, piece = self._vocab.tokenize(text, add_special=False, parse_special=True), self._vocab.piece
        is_control = len(tokens) == 1 and piece(tokens[0]) == text.encode() and not piece(tokens[0], special=False)
        return tokens[0] if is_control else None

    @contained
    def prepare(self) -> Tokenizer:
        """Read the vocabulary, once."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = Tokenizer(TokenTable.of(self._vocab))
            return self._tokenizer

    def _vocabulary(self) -> bytes:
        """Return the vocabulary for the sandbox. It is always the same object, by which the sandbox finds processes."""
        with self._lock:
            self._table = self._table or pickle.dumps(TokenTable.of(self._vocab))
            return self._table
