"""Grammars are compiled in sandboxed processes: a grammar that takes too much time or memory ends only its process."""

import json
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from server.errors import InvalidRequest, ShuttingDown, TooLate
from server.sandbox.memory import MemoryWatch
from server.sandbox.process import WorkLimits
from server.structured.grammar.attempt import Attempt, CompileCancelled, CompileLater, within
from server.structured.grammar.compiler import GrammarCompiler
from server.structured.grammar.matcher import MatcherConstraint
from server.structured.grammar.sandbox import LIMITS, Sandbox
from server.structured.grammar.schema.plain import is_plain
from tests.support.waiting import wait_until
from tests.unit.structured.builders import WordVocab, exploding_schema, matches

AMPLE = WorkLimits(cpu_s=120, wall_s=120, memory_bytes=2 << 30)
DATE = {"type": "string", "format": "date"}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with closing(Sandbox()) as sandbox:
        yield sandbox


@pytest.fixture
def compiler(sandbox: Sandbox) -> GrammarCompiler:
    return GrammarCompiler(WordVocab(), sandbox)


@contextmanager
def own_sandbox(limits: WorkLimits = AMPLE) -> Iterator[tuple[Sandbox, GrammarCompiler]]:
    """Provide a sandbox with its compiler. The default limits do not stop the exploding schema."""
    with closing(Sandbox(limits)) as sandbox:
        yield sandbox, GrammarCompiler(WordVocab(), sandbox)


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        (WorkLimits(cpu_s=0.3, wall_s=60), "it took more than 0.3 s of CPU time"),
        (WorkLimits(cpu_s=60, wall_s=60, memory_bytes=100 << 20), "it took more than 100 MiB of memory"),
    ],
)
def test_exploding_schema_is_rejected_and_the_next_grammar_compiles(limits: WorkLimits, error: str) -> None:
    with own_sandbox(limits) as (_, compiler):
        for _ in range(2):
            with pytest.raises(InvalidRequest, match=error) as caught:
                compiler.json_schema(exploding_schema())
            assert caught.value.param == "json_schema"
        assert matches(compiler.json_schema(DATE), '"2026-11-23"')


CHAIN = {
    f"d{n}": {"properties": {"x": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"type": "null"}]}}} for n in range(1000)
}
DEEP = json.dumps({"$ref": "#/$defs/d0", "$defs": {**CHAIN, "d1000": {"type": "null"}}})
N_RULES = 3000


@pytest.mark.parametrize(
    "lark",
    [
        f"start: body\nbody: %json {DEEP}",
        "start: " + "(" * 100_000 + '"a"' + ")" * 100_000,
        "start: a0\n" + "".join(f"a{n}: a{n + 1}\n" for n in range(N_RULES)) + f'a{N_RULES}: "x"',
        "start: A0\n" + "".join(f'A{n}: "y" A{n + 1}\n' for n in range(N_RULES)) + f'A{N_RULES}: "x"',
    ],
    ids=["schema", "groups", "rules", "terminals"],
)
def test_grammar_that_overflows_the_stack_is_rejected(lark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these grammars crashes the process that compiles it with llguidance 1.9.1."""
    monkeypatch.setattr("server.sandbox.process.subprocess", subprocess)  # forked processes have larger stacks
    with own_sandbox(LIMITS) as (_, compiler):
        with pytest.raises(InvalidRequest, match=r"crashed|too deep|recursion"):
            compiler.lark(lark)
        assert matches(compiler.lark('start: "a"'), "a")


@pytest.mark.parametrize(
    ("kind", "value", "error"),
    [
        ("lark", "start: %json " + json.dumps(exploding_schema()), "was stopped"),
        (
            "gbnf",
            "root ::= a0\n" + "".join(f"a{n} ::= a{n + 1}\n" for n in range(N_RULES)) + f'a{N_RULES} ::= "x"',
            "grammar",
        ),
        ("json_schema", json.loads(DEEP), "json_schema"),
        (
            "json_schema",  # a pattern whose masks would take too long
            {"type": "string", "maxLength": 5000, "pattern": r"^(\S+\s+){0,99}\S+$"},
            "use simpler patterns, or smaller counts",
        ),
        (
            "json_schema",
            {"type": "string", "pattern": "a(?=b)c"},
            "json_schema: the keyword 'pattern' cannot be enforced",
        ),
        ("json_schema", {"contains": {}}, "json_schema: the keyword 'contains' cannot be enforced"),
    ],
)
def test_error_names_why_a_grammar_is_rejected(compiler: GrammarCompiler, kind: str, value: Any, error: str) -> None:
    with pytest.raises(InvalidRequest, match=error) as caught:
        getattr(compiler, kind)(value)
    assert caught.value.param == ("json_schema" if kind == "json_schema" else "grammar")


def test_every_grammar_kind_compiles_in_the_sandbox(compiler: GrammarCompiler) -> None:
    unique = compiler.json_schema({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True})
    constraints: list[tuple[MatcherConstraint, str, str]] = [
        (compiler.json_schema(DATE), '"2026-11-23"', '"today"'),
        (unique, '["a", "b"]', '["a", "a"]'),
        (compiler.lark("start: %json " + '{"format": "date", "type": "string"}'), '"2026-11-23"', "1"),
        (compiler.gbnf('root ::= "a" [0-9]+'), "a12", "b"),
        (compiler.regex("a+b"), "aab", "b"),
        (compiler.choice(["yes", "no"]), "no", "nay"),
    ]
    for constraint, valid, invalid in constraints:
        assert matches(constraint.fork(), valid)
        assert not matches(constraint, invalid)


def test_cancelling_stops_a_running_compilation_and_later_ones_of_the_request() -> None:
    attempt = Attempt()
    with own_sandbox() as (sandbox, compiler), ThreadPoolExecutor(1) as thread:

        def work() -> None:
            with within(attempt):
                compiler.json_schema(exploding_schema())

        future = thread.submit(work)
        wait_until(lambda: sandbox.at_work, "work in the sandbox", poll_s=0.001)
        attempt.cancel()
        with pytest.raises(CompileCancelled):
            future.result(60)
        assert not sandbox.at_work
        with within(attempt), pytest.raises(CompileCancelled):
            compiler.json_schema(DATE)
        assert matches(compiler.json_schema(DATE), '"2026-11-23"'), "other requests must not be cancelled"


def test_wall_time_limit_asks_the_client_to_retry() -> None:
    with own_sandbox(replace(AMPLE, wall_s=0.2)) as (_, compiler):
        for _ in range(2):
            with pytest.raises(TooLate, match=r"it took more than 0.2 s, retry in 5 s"):
                compiler.json_schema(exploding_schema())


def test_time_limit_covers_all_grammars_of_a_request(compiler: GrammarCompiler) -> None:
    attempt, schema = Attempt(), {"type": "array", "items": DATE, "maxItems": 7}
    attempt.left_s = 0.0
    with within(attempt), pytest.raises(TooLate, match="compiling the grammars of this request took 10 s"):
        compiler.json_schema(schema)
    assert matches(compiler.json_schema(schema), "[]"), "another request has its own time"


def test_closing_the_sandbox_stops_running_and_later_compilations() -> None:
    with own_sandbox() as (sandbox, compiler), ThreadPoolExecutor(1) as thread:
        future = thread.submit(compiler.json_schema, exploding_schema())
        wait_until(lambda: sandbox.at_work, "work in the sandbox", poll_s=0.001)
        sandbox.close()
        with pytest.raises(ShuttingDown):
            future.result(60)
        with pytest.raises(ShuttingDown):
            compiler.json_schema(DATE)


def test_without_an_attempt_only_cached_and_plain_grammars_are_returned(compiler: GrammarCompiler) -> None:
    schema = {"type": "array", "items": DATE, "maxItems": 3}
    with within(None):
        assert matches(compiler.json_schema({"type": "integer"}), "7")
        with pytest.raises(CompileLater):
            compiler.json_schema(schema)
        with pytest.raises(CompileLater):
            compiler.regex("a+")
    compiler.json_schema(schema)
    with within(None):
        assert matches(compiler.json_schema(schema), "[]")


def test_models_share_sandbox_processes(sandbox: Sandbox) -> None:
    compilers = [GrammarCompiler(WordVocab(b"<other>"), sandbox), GrammarCompiler(WordVocab(), sandbox)]
    for n in (1, 2):
        for compiler in compilers:
            assert matches(compiler.regex(f"a{{{n}}}"), "a" * n)
    assert len(sandbox._idle) <= 2


def test_memory_watch_without_a_reserve_reports_no_shortage() -> None:
    watch = MemoryWatch(0, lambda: (), lambda: 1)
    watch.check()
    assert not watch.shortage


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        (True, True),
        ({"type": "object", "properties": {"a": {"type": "string", "maxLength": 200}}, "required": ["a"]}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "T"}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}}, True),
        ({"enum": ["a", 1, None]}, True),
        ({"anyOf": [{"type": "string"}], "properties": {}}, False),
        ({"$ref": "#/$defs/a", "type": "object"}, False),
        ({"$ref": "http://127.0.0.1/"}, False),
        ({"allOf": [{}]}, False),
        ({"oneOf": [{}]}, False),
        ({"pattern": "a"}, False),
        ({"format": "date"}, False),
        ({"maxLength": 201}, False),
        ({"maxLength": 3.5}, False),
        ({"properties": 7}, False),
        ({"anyOf": 7}, False),
        ({"items": [{}]}, False),
        ({"enum": ["x" * 30_000]}, False),
        ({"enum": list(range(1000))}, False),
        ({"x-unknown": {}}, False),
        (exploding_schema(), False),
    ],
)
def test_only_small_schemas_without_combining_keywords_are_plain(schema: object, plain: bool) -> None:
    assert is_plain(schema) is plain


def test_plain_schemas_at_the_size_limits_compile_quickly() -> None:
    """They are compiled without the sandbox, in the calling thread: in 0.05 s of CPU time on a slow machine."""
    compiler = GrammarCompiler(WordVocab())
    text = {"type": "string", "minLength": 100, "maxLength": 200}
    wide: Any = {"type": "object", "properties": {f"p{n}": text for n in range(190)}}
    deep: Any = {"type": "integer", "minimum": -12345, "maximum": 98765}
    for _ in range(12):
        deep = {"type": "array", "items": deep, "minItems": 100, "maxItems": 200}
    either: Any = {"anyOf": [{"type": "array", "items": text, "maxItems": 200 - n} for n in range(100)]}
    known: Any = {"enum": [f"{n:030}" for n in range(590)]}
    for schema in (wide, deep, either, known):
        assert is_plain(schema)
        start_s = time.thread_time()
        compiler.json_schema(schema)
        assert time.thread_time() - start_s < 5
