"""The child process of `sandbox`: compiles a grammar as the server does and tests it."""

import json
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import llguidance

from server.errors import InvalidRequest
from server.sandbox.worker import Answer
from server.structured.grammar.build import Grammar, Kind, build
from server.structured.grammar.limits import SANDBOX_STACK_BYTES
from server.structured.grammar.matcher import first_line
from server.structured.grammar.sandbox import DONE, REFUSED, VOCABULARY
from server.structured.grammar.tokenizer import Tokenizer, TokenTable

_N_WALKS, _N_STEPS = 2, 24
"""Tokens that a grammar is tried with: some fail at the first text that they are given."""


class _Vocabulary:
    """The tokenizer of a vocabulary, and its tokens by text."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self.tokenizer = Tokenizer(table)
        self.ends = frozenset(table.ends)
        self.special = [token for token in table.special if token not in self.ends]

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return self._table.ids()

    def token_id(self, text: str) -> int | None:
        """Return the token whose whole text is `text`."""
        return self._ids.get(text.encode("utf-8", "surrogatepass"))


def answerer() -> Answer:
    """Return the function that answers requests. A grammar that overflows the thread's stack ends the process."""
    threading.stack_size(SANDBOX_STACK_BYTES)
    thread = ThreadPoolExecutor(1)
    vocabulary: list[_Vocabulary] = []

    def answer(what: bytes, request: bytes) -> tuple[bytes, bytes]:
        if what == VOCABULARY:
            vocabulary[:] = [_Vocabulary(pickle.loads(request))]  # noqa: S301 - of the server's own
            return DONE, b""
        try:
            made = thread.submit(_built, vocabulary[0], *json.loads(request)).result()
            return DONE, json.dumps(made).encode()
        except InvalidRequest as error:
            return REFUSED, json.dumps([error.message, error.param]).encode()

    return answer


def _built(vocabulary: _Vocabulary, kind: Kind, request: Any, _: str) -> Any:
    grammar = build(kind, request, vocabulary)
    for each in (grammar, *(inner for inner, _ in grammar.texts)):
        _try_out(each.matcher(vocabulary.tokenizer, request), each)
    return grammar.as_json()


def _try_out(matcher: llguidance.LLMatcher, grammar: Grammar) -> None:
    """Generate random allowed tokens. Raises `InvalidRequest` if the matcher fails, as it would during a reply."""
    for seed in range(_N_WALKS):
        chance, walked = random.Random(seed), matcher.deep_copy()  # noqa: S311 - to be the same each time
        for _ in range(_N_STEPS):
            mask = walked.compute_bitmask()
            if walked.is_stopped() or not walked.consume_token(_any_token(mask, chance)):
                break
        if walked.is_error():
            reason = first_line(walked.get_error())
            raise InvalidRequest(f"{grammar.prefix}: it exceeds the limits of one token: {reason}", grammar.param)


def _any_token(mask: bytes, chance: random.Random) -> int:
    """Return a random token of the non-empty mask."""
    start = chance.randrange(len(mask))
    at = next(n % len(mask) for n in range(start, start + len(mask)) if mask[n % len(mask)])
    return at * 8 + chance.choice([bit for bit in range(8) if mask[at] >> bit & 1])
