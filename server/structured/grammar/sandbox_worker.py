"""Runs in a process of `sandbox`: compiles a grammar like the server, and tests it."""

import json
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
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
"""Random outputs to test a grammar with, and their tokens: some grammars fail at the first text."""


def answerer() -> Answer:
    """Return the request handler. A grammar that overflows the thread's stack ends the process."""
    threading.stack_size(SANDBOX_STACK_BYTES)
    thread = ThreadPoolExecutor(1)
    vocabulary: list[tuple[TokenTable, Tokenizer]] = []

    def answer(kind: bytes, request: bytes) -> tuple[bytes, bytes]:
        if kind == VOCABULARY:
            table: TokenTable = pickle.loads(request)  # noqa: S301 - sent by the server
            vocabulary[:] = [(table, Tokenizer(table))]
            return DONE, b""
        try:
            grammar = thread.submit(_built, *vocabulary[0], *json.loads(request)).result()
            return DONE, json.dumps(grammar, default=_as_dict).encode()
        except InvalidRequest as error:
            return REFUSED, json.dumps([error.message, error.param]).encode()

    return answer


def _built(table: TokenTable, tokenizer: Tokenizer, kind: Kind, request: Any, _: str) -> Grammar:
    grammar = build(kind, request, lambda: table)
    for each in (grammar, *(inner for inner, _ in grammar.texts)):
        _try_out(each.matcher(tokenizer, request), each)
    return grammar


def _as_dict(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields. `asdict` would copy what they contain within the sandbox's CPU time."""
    return {each.name: getattr(value, each.name) for each in fields(value)}


def _try_out(matcher: llguidance.LLMatcher, grammar: Grammar) -> None:
    """Generate random allowed tokens. Raises `InvalidRequest` if the matcher fails, as it would during a reply."""
    for seed in range(_N_WALKS):
        rng, walk = random.Random(seed), matcher.deep_copy()  # noqa: S311 - must be reproducible
        for _ in range(_N_STEPS):
            mask = walk.compute_bitmask()
            if walk.is_stopped() or not walk.consume_token(_random_token(mask, rng)):
                break
        if walk.is_error():
            reason = first_line(walk.get_error())
            raise InvalidRequest(f"{grammar.prefix}: it exceeds the limits of one token: {reason}", grammar.param)


def _random_token(mask: bytes, rng: random.Random) -> int:
    """Return a random token of the non-empty mask."""
    start = rng.randrange(len(mask))
    at = next(n % len(mask) for n in range(start, start + len(mask)) if mask[n % len(mask)])
    return at * 8 + rng.choice([bit for bit in range(8) if mask[at] >> bit & 1])
