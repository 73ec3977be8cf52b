"""Lazy grammars: ``grammar_lazy``, ``grammar_triggers`` and ``preserved_tokens``."""

from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.completions.parse import parse_completion
from server.dialects.dialect import Context
from server.dialects.native.parse import parse_native
from server.engine.request import Request
from server.errors import InvalidRequest
from server.structured.constraint import Constraint
from tests.support.fakes import EOS, FakeVocab
from tests.unit.dialects.builders import PieceVocab, finished, make_model
from tests.unit.structured.builders import takes

GRAMMAR = 'root ::= "<call>" [0-9]+ "."'
WORD = {"type": 1, "value": "<call>"}


PIECES = {1: b"<call>", 2: b"l>x", 6: b"l>7"}  # tokens 2 and 6 contain the end of the word and one more character
SPLIT_WORD = PieceVocab(PIECES)  # several tokens spell "<call>"
ONE_TOKEN_WORD = PieceVocab(PIECES, {"<call>": 1})


def model_of(vocab: FakeVocab | None = None) -> Any:
    return make_model(vocab=vocab, compiles=True)


def native(vocab: FakeVocab | None = None, **fields: Any) -> Request:
    body = {"prompt": "p", "grammar": GRAMMAR, "grammar_lazy": True, **fields}
    (request,) = parse_native(body).generation(Context(model_of(vocab))).requests
    return request


def rejection(vocab: FakeVocab | None = None, **body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        native(vocab, **body)
    return caught.value


def constraint_of(vocab: FakeVocab | None = None, **body: Any) -> Constraint:
    constraint = native(vocab, **body).constraint
    assert constraint is not None
    return constraint


def test_the_grammar_applies_after_a_trigger_word() -> None:
    constraint = constraint_of(grammar_triggers=[WORD])
    assert takes(constraint, b"I <say> <call")
    assert takes(constraint.fork(), b"er and an end")
    assert takes(constraint, b">12")
    assert not constraint.allows(ord("x"))
    assert not constraint.allows(EOS)
    assert takes(constraint, b".")
    assert constraint.finished
    assert constraint.masked_by() is not None


@pytest.mark.parametrize(
    ("kind", "pattern", "before"),
    [
        (2, "<c[a-z]+>", b"I say "),
        (2, "say (<call>)", b"I say "),  # the grammar starts with the first group
        (2, "(zzz)?<call>", "\N{SNOWMAN} ".encode()),
        (3, "[\\s\\S]*?(<call>)", b"I\nsay "),
        (3, "^I say (<call>)$", b"I say "),
    ],
)
def test_the_grammar_applies_after_a_trigger_pattern(kind: int, pattern: str, before: bytes) -> None:
    constraint = constraint_of(grammar_triggers=[{"type": kind, "value": pattern}])
    assert takes(constraint, before + b"<call>5")
    assert not constraint.allows(ord("x"))
    assert takes(constraint, b".")
    assert constraint.finished


@pytest.mark.parametrize("trigger", [WORD, {"type": 2, "value": "<c.*l>"}])
def test_a_token_that_ends_a_trigger_must_continue_as_the_grammar_says(trigger: dict[str, Any]) -> None:
    constraint = constraint_of(SPLIT_WORD, grammar_triggers=[trigger])
    assert takes(constraint, b"<cal")
    assert not constraint.allows(2)
    mask = constraint.mask()
    assert [mask[0] >> token & 1 for token in (2, 6)] == [0, 1]
    with pytest.raises(InvalidRequest, match="can't begin with '<call>x'"):
        constraint.fork().accept(2)
    assert takes(constraint, [6, ord("8"), ord(".")])
    assert constraint.finished


def test_the_text_of_a_trigger_token_is_no_trigger() -> None:
    for trigger in ({"type": 0, "value": "<call>", "token": 1}, WORD):
        body: dict[str, Any] = {"grammar_triggers": [trigger], "preserved_tokens": ["<call>"]}
        assert native(ONE_TOKEN_WORD, **body).print_special == {1}
        constraint = constraint_of(ONE_TOKEN_WORD, **body)
        assert takes(constraint, b"a <call> in text ")
        assert takes(constraint, [1, ord("5"), ord(".")])
        assert constraint.finished


def test_a_token_without_text_can_be_a_trigger() -> None:
    triggers = [{"type": 0, "value": "", "token": 1}]
    constraint = constraint_of(PieceVocab({1: b""}), grammar='root ::= [0-9]+ "."', grammar_triggers=triggers)
    assert takes(constraint, [*b"is it ", 1, *b"5."])
    assert constraint.finished


def test_every_dialect_accepts_triggers_for_a_schema() -> None:
    triggers = [{"type": 1, "value": '{"'}]
    lazy: dict[str, Any] = {"json_schema": {"const": {"a": 1}}, "grammar_lazy": True, "grammar_triggers": triggers}
    chat = {"messages": [{"role": "user", "content": "Hi"}], **lazy}
    constraints = [
        parse_chat(chat).generation(Context(model_of())).requests[0].constraint,
        parse_completion({"prompt": "p", **lazy}).generation(Context(model_of())).requests[0].constraint,
        native(grammar=None, **lazy).constraint,
    ]
    for each in constraints:
        assert each is not None
        assert takes(each, b'Here: {"a": 1}')
        assert each.finished


def test_triggers_without_grammar_lazy_or_without_a_grammar_have_no_effect() -> None:
    assert not takes(constraint_of(grammar_lazy=False, grammar_triggers=[WORD]), b"Hi")
    assert native(grammar=None, grammar_triggers=[WORD]).constraint is None


def test_generation_settings_show_the_resolved_triggers() -> None:
    body = {"prompt": "p", "grammar": GRAMMAR, "grammar_lazy": True, "grammar_triggers": [WORD]}
    body |= {"preserved_tokens": ["<call>", "two"]}
    writer: Any = parse_native(body).generation(Context(model_of(ONE_TOKEN_WORD))).writer
    settings = writer.final(0, finished())["generation_settings"]
    assert settings["grammar_lazy"] is True
    assert settings["grammar_triggers"] == [{"type": 0, "value": "<call>", "token": 1}]
    assert settings["preserved_tokens"] == [1]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "grammar_triggers", "no triggers set for lazy grammar"),
        ({"grammar_triggers": []}, "grammar_triggers", "no triggers set for lazy grammar"),
        ({"grammar_triggers": [{"type": 1, "value": ""}]}, "grammar_triggers.0", "empty"),
        ({"grammar_triggers": [{"type": 2, "value": "(?=a)"}]}, "grammar_triggers", "(the syntax is RE2's)"),
        ({"grammar_triggers": [{"type": 2, "value": "(a{30}){30}(b{30}){10}"}]}, "grammar_triggers", "too large"),
        ({"grammar_triggers": [{"type": 0, "value": "a"}]}, "grammar_triggers.0", "token"),
        ({"grammar_triggers": [{"type": 0, "value": "a", "token": 10**6}]}, "grammar_triggers", "no token"),
        ({"grammar_triggers": [WORD] * 65}, "grammar_triggers", "at most 64"),
        ({"grammar_triggers": [{"type": 1, "value": "x" * 257}]}, "grammar_triggers.0.value", "at most 256"),
        ({"grammar_triggers": [{"type": 1, "value": "other"}]}, "grammar_triggers", "can't begin with 'other'"),
        ({"preserved_tokens": ["x" * 257]}, "preserved_tokens.0", "at most"),
    ],
)
def test_invalid_triggers_are_rejected(body: dict[str, Any], param: str, message: str) -> None:
    error = rejection(**body)
    assert error.param == param
    assert message in error.message


def test_a_trigger_word_of_one_token_must_be_preserved() -> None:
    assert "marked as preserved token: <call>" in rejection(ONE_TOKEN_WORD, grammar_triggers=[WORD]).message


def test_grammar_lazy_can_not_be_combined_with_tools() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "grammar_lazy": True}
    with pytest.raises(InvalidRequest, match="grammar_lazy"):
        parse_chat(body)
