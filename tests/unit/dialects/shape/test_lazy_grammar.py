from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.completions.parse import parse_completion
from server.dialects.dialect import Context
from server.dialects.native.parse import parse_native
from server.engine.request import Request
from server.errors import InvalidRequest
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from tests.support.fakes import EOS, FakeVocab
from tests.unit.dialects.builders import finished, make_model
from tests.unit.structured.builders import takes

GRAMMAR = 'root ::= "<call>" [0-9]+ "."'
WORD = {"type": 1, "value": "<call>"}


class Tagged(FakeVocab):
    """``<call>`` is token 1; token 2 holds the end of it and more."""

    def piece(self, token: int, *, special: bool = True) -> bytes:
        return {1: b"<call>", 2: b"l>x", 6: b"l>7"}.get(token) or super().piece(token, special=special)

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if parse_special and text == "<call>":
            return [1]
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def model_of(vocab: FakeVocab | None = None) -> Any:
    model: Any = make_model()
    model.vocab = vocab or model.vocab
    model.grammar = GrammarCompiler(model.vocab)
    return model


def native(vocab: FakeVocab | None = None, **body: Any) -> Request:
    given = {"prompt": "p", "grammar": GRAMMAR, "grammar_lazy": True, **body}
    (request,) = parse_native(given).generation(Context(model_of(vocab))).requests
    return request


def refused(vocab: FakeVocab | None = None, **body: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        native(vocab, **body)
    return caught.value


def constraint(vocab: FakeVocab | None = None, **body: Any) -> Constraint:
    made = native(vocab, **body).constraint
    assert made is not None
    return made


def test_everything_may_come_until_a_word_does_and_then_the_grammar_holds() -> None:
    made = constraint(grammar_triggers=[WORD])
    assert takes(made, b"I <say> <call")
    assert takes(made.fork(), b"er and an end")
    assert takes(made, b">12")
    assert not made.allows(ord("x"))
    assert not made.allows(EOS)
    assert takes(made, b".")
    assert made.finished
    assert made.masked_by() is not None


@pytest.mark.parametrize(
    ("kind", "pattern", "before"),
    [
        (2, "<c[a-z]+>", b"I say "),
        (2, "say (<call>)", b"I say "),  # what its first group has caught is the grammar's
        (2, "(zzz)?<call>", "\N{SNOWMAN} ".encode()),
        (3, "[\\s\\S]*?(<call>)", b"I\nsay "),
        (3, "^I say (<call>)$", b"I say "),
    ],
)
def test_a_pattern_begins_it(kind: int, pattern: str, before: bytes) -> None:
    made = constraint(grammar_triggers=[{"type": kind, "value": pattern}])
    assert takes(made, before + b"<call>5")
    assert not made.allows(ord("x"))
    assert takes(made, b".")
    assert made.finished


@pytest.mark.parametrize("trigger", [WORD, {"type": 2, "value": "<c.*l>"}])
def test_what_would_go_on_wrongly_behind_a_trigger_does_not_come(trigger: dict[str, Any]) -> None:
    made = constraint(Split(), grammar_triggers=[trigger])
    assert takes(made, b"<cal")
    assert not made.allows(2)
    mask = made.mask()
    assert [mask[0] >> token & 1 for token in (2, 6)] == [0, 1]
    with pytest.raises(InvalidRequest, match="can't begin with '<call>x'"):
        made.fork().accept(2)
    assert takes(made, [6, ord("8"), ord(".")])
    assert made.finished


class Split(Tagged):
    """Without a token of the whole word."""

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return FakeVocab.tokenize(self, text, add_special=add_special, parse_special=parse_special)


def test_a_token_is_a_trigger_only_as_that_token() -> None:
    for trigger in ({"type": 0, "value": "<call>", "token": 1}, WORD):
        body: dict[str, Any] = {"grammar_triggers": [trigger], "preserved_tokens": ["<call>"]}
        assert native(Tagged(), **body).print_special == {1}
        made = constraint(Tagged(), **body)
        assert takes(made, b"a <call> in text ")
        assert takes(made, [1, ord("5"), ord(".")])
        assert made.finished


class Silent(FakeVocab):
    """Token 1 has no text."""

    def piece(self, token: int, *, special: bool = True) -> bytes:
        return b"" if token == 1 else super().piece(token, special=special)


def test_a_token_without_a_text_is_a_trigger() -> None:
    triggers = [{"type": 0, "value": "", "token": 1}]
    made = constraint(Silent(), grammar='root ::= [0-9]+ "."', grammar_triggers=triggers)
    assert takes(made, [*b"is it ", 1, *b"5."])
    assert made.finished


def test_a_schema_may_wait_too_and_every_wire_format_knows_it() -> None:
    triggers = [{"type": 1, "value": '{"'}]
    lazy: dict[str, Any] = {"json_schema": {"const": {"a": 1}}, "grammar_lazy": True, "grammar_triggers": triggers}
    chat = {"messages": [{"role": "user", "content": "Hi"}], **lazy}
    made = [
        parse_chat(chat).generation(Context(model_of())).requests[0].constraint,
        parse_completion({"prompt": "p", **lazy}).generation(Context(model_of())).requests[0].constraint,
        native(grammar=None, **lazy).constraint,
    ]
    for each in made:
        assert each is not None
        assert takes(each, b'Here: {"a": 1}')
        assert each.finished


def test_without_lazy_triggers_mean_nothing_and_without_a_grammar_nothing_waits() -> None:
    assert not takes(constraint(grammar_lazy=False, grammar_triggers=[WORD]), b"Hi")
    assert native(grammar=None, grammar_triggers=[WORD]).constraint is None


def test_the_settings_show_them_as_they_came_to_be() -> None:
    body = {"prompt": "p", "grammar": GRAMMAR, "grammar_lazy": True, "grammar_triggers": [WORD]}
    generation = parse_native({**body, "preserved_tokens": ["<call>", "two"]}).generation(Context(model_of(Tagged())))
    shown: Any = generation.writer
    settings = shown.final(0, finished())["generation_settings"]
    assert settings["grammar_lazy"] is True
    assert settings["grammar_triggers"] == [{"type": 0, "value": "<call>", "token": 1}]
    assert settings["preserved_tokens"] == [1]


@pytest.mark.parametrize(
    ("body", "param", "said"),
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
def test_what_cannot_be_is_refused(body: dict[str, Any], param: str, said: str) -> None:
    error = refused(**body)
    assert error.param == param
    assert said in error.message


def test_a_word_of_one_token_must_be_preserved() -> None:
    assert "marked as preserved token: <call>" in refused(Tagged(), grammar_triggers=[WORD]).message


def test_tools_have_triggers_of_their_own() -> None:
    tool = {"type": "function", "function": {"name": "f"}}
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": [tool], "grammar_lazy": True}
    with pytest.raises(InvalidRequest, match="grammar_lazy"):
        parse_chat(body)
