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


class NewestValues(Generic[T]):
    """Keeps the `size` values that were used last, and refusals like values. Safe in any thread.

    It keeps a digest of each key: a client's grammar may have megabytes.
    """

    def __init__(self, size: int) -> None:
        self._size, self._lock = size, Lock()
        self._entries: OrderedDict[bytes, tuple[Lock, list[T | InvalidRequest]]] = OrderedDict()

    def get(self, key: str, make: Callable[[], T]) -> T:
        """Return the value of `key`, made by `make` where it is missing. Raises `CompileLater` where another thread
        makes it and this one must not wait.
        """
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            lock, made = self._entries.setdefault(digest, (Lock(), []))
            self._entries.move_to_end(digest)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        if not lock.acquire(blocking=current() is not None):
            raise CompileLater
        try:
            if not made:
                made.append(make())
        except InvalidRequest as error:
            made.append(error)
        finally:
            lock.release()
        if isinstance(made[0], InvalidRequest):
            raise InvalidRequest(made[0].message, made[0].param)
        return made[0]


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
        self._lock = Lock()
        self._tokenizer: Tokenizer | None = None
        self._table = b""
        self._compiled: NewestValues[MatcherConstraint] = NewestValues(_CACHED)
        self._remembered: NewestValues[object] = NewestValues(_CACHED)
        self.tokens = TextTokens(vocab)

    def json_schema(self, schema: object) -> MatcherConstraint:
        """Return JSON that validates against `schema` (Draft 2020-12, or the draft that its `$schema` names)."""
        return self._made("schema", schema, SCHEMA)

    def recreate(self, recipe: Recipe) -> MatcherConstraint:
        """Return a constraint that a compiler over the same vocabulary has made, after ``recipe.begun``."""
        made = self._made(*json.loads(recipe.request))
        return self.after(made, recipe.begun.decode()) or made

    def after(self, constraint: MatcherConstraint, text: str) -> MatcherConstraint | None:
        """Return a copy of the constraint after a text, None if the constraint does not take it."""
        made, written = constraint.fork(), text.encode()
        made.recipe = constraint.recipe._replace(begun=written)
        return made if self.tokens.feed(made, written) else None

    def _made(self, kind: Kind, request: Any, param: str, *, is_own: bool = False) -> MatcherConstraint:
        """Return the constraint of what `build` makes of a request. ``param``: the field that errors name. ``is_own``:
        it is no client's, and cheap.
        """
        try:
            text = json.dumps([kind, request, param])
        except (ValueError, TypeError, RecursionError):  # no JSON, or too deep: `build` raises the specific error
            return self._compile(kind, request, param, "")
        return self._compiled.get(text, lambda: self._compile(kind, request, param, text, is_own=is_own)).fork()

    def _compile(self, kind: Kind, request: Any, param: str, text: str, *, is_own: bool = False) -> MatcherConstraint:
        if self._sandbox is None or not text or is_own or (kind == "schema" and is_plain(request)):
            grammar = build(kind, request, lambda: TokenTable.of(self._vocab))
        else:
            self.prepare()
            grammar = Grammar.from_json(self._sandbox.compile(self._vocabulary(), text.encode(), param))
        made = self._constraint(grammar, request, text)
        if grammar.unique is not None:
            self.tokens.build("quotes", "items")
            return UniqueItems(made, Cursor(UniquePlaces(grammar.unique).root), self.tokens)
        if not grammar.texts:
            return made
        texts = tuple(
            EmbeddedText(
                self._constraint(inner, None, ""),
                escaped=place.get("escaped", False),
                end=place.get("end", "").encode(),
                never=tuple(each.encode() for each in place.get("never", ())),
            )
            for inner, place in grammar.texts
        )
        self.tokens.build("plain", "text", "escapes")
        return EmbeddedTexts(made, texts, grammar.hole, self.tokens)

    def _constraint(self, grammar: Grammar, request: Any, text: str) -> MatcherConstraint:
        tokenizer = self.prepare()
        return MatcherConstraint(grammar.matcher(tokenizer, request), tokenizer, grammar.param, Recipe(text))

    def gbnf(self, text: str) -> MatcherConstraint:
        """Return llama.cpp's grammar format (grammars/README.md), matched exactly as written."""
        return self._made("gbnf", text, "grammar")

    def lark(self, text: str, *, max_chars: int = MAX_TEXT_CHARS) -> MatcherConstraint:
        """Return llguidance's dialect of Lark: rule `start`, inline ``%json {...}``."""
        return self._made("lark", [text, max_chars], "grammar")

    def own_lark(self, text: str) -> MatcherConstraint:
        """Return Lark that this project has written, compiled without the sandbox."""
        grammar = llguidance.LLMatcher.grammar_from_lark(text)
        return self._made("grammar", [grammar, "grammar", "grammar"], "grammar", is_own=True)

    def remembered(self, key: str, make: Callable[[], T]) -> T:
        """Return `make()`, cached by key; for results that combine several grammars."""
        return cast(T, self._remembered.get(key, make))

    def regex(self, pattern: str) -> MatcherConstraint:
        """Return text that matches `pattern` (Rust regex syntax, no look-around); `^` and `$` at its ends are fine."""
        if len(pattern) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the regex has {len(pattern)} characters, {MAX_TEXT_CHARS} are allowed", "regex")
        grammar = llguidance.LLMatcher.grammar_from_regex(without_anchors(pattern))
        return self._made("grammar", [grammar, "regex", "invalid regex"], "regex")

    def choice(self, options: Sequence[str]) -> MatcherConstraint:
        """Return exactly one of `options`."""
        if not options:
            raise InvalidRequest("choice needs at least one option", "choice")
        if sum(map(len, options)) > MAX_TEXT_CHARS:
            raise InvalidRequest(f"the choices have more than {MAX_TEXT_CHARS} characters in all", "choice")
        # One terminal: alternatives that begin alike must stay open side by side.
        grammar = "start: CHOICE\nCHOICE: " + "\n  | ".join(map(json.dumps, options)) + "\n"
        return self._made("grammar", [grammar, "choice", "choice"], "choice")

    def control_token(self, text: str) -> int | None:
        """Return the control token whose whole text is `text`, which no text of a grammar matches; None for none."""
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
        """Return the vocabulary as the sandbox reads it: one object, by which it knows its processes."""
        with self._lock:
            self._table = self._table or pickle.dumps(TokenTable.of(self._vocab))
            return self._table
