"""Adaptation of messages that a template can't take. `test_prompt_completeness` checks that no text is lost."""

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.templates.adaptation import _with_ids
from tests.support.downloads import TEMPLATE_NAMES, needs_templates
from tests.unit.templates.conversations import message
from tests.unit.templates.corpus import make_template, template_of

pytestmark = pytest.mark.slow

FIRST_SYSTEM = (
    "{% for m in messages %}{{ raise_exception('only first') if m.role == 'system' and not loop.first }}"
    "<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
CALLS = (
    "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}[%s{{ c.function.arguments | tojson }}]{% endfor %}"
    "{% if m.role == 'tool' %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
)
S, U, A = message("system", "s"), message("user", "u"), message("assistant", "a")
T = message("tool", "t", tool_call_id="c1")
LATE, LATER = message("system", "late"), message("developer", "later")


def message_with_calls(*ids: dict[str, str]) -> dict[str, Any]:
    function = {"name": "f", "arguments": "{}"}
    return message("assistant", "", tool_calls=[{"type": "function", **each, "function": function} for each in ids])


CALL = message_with_calls({"id": "c1"})


def prompt_of(source: str, *messages: dict[str, Any], **options: Any) -> str:
    return make_template(source).render(messages, **options).text


def test_later_system_message_leaves_the_preceding_prompt_unchanged() -> None:
    before = prompt_of(FIRST_SYSTEM, S, U, A, U, add_generation_prompt=False)
    assert prompt_of(FIRST_SYSTEM, S, U, A, U, LATE).startswith(before)


TEXT = "<system>\nlate\n</system>"


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ((S, U, LATE), f"<system>s<user>u\n\n{TEXT}<assistant>"),
        ((S, U, LATE, LATER), f"<system>s<user>u\n\n{TEXT}\n\n<system>\nlater\n</system><assistant>"),
        ((U, A, LATE, U), f"<user>u<assistant>a<user>{TEXT}\n\nu<assistant>"),
        ((U, A, LATE), f"<user>u<assistant>a<user>{TEXT}<assistant>"),
        ((U, A, LATE, A), f"<user>u<assistant>a<user>{TEXT}<assistant>a<assistant>"),
        ((U, CALL, T, LATE), f"<user>u<assistant>[{{}}]<tool>t\n\n{TEXT}<assistant>"),
        ((U, CALL, LATE, T), f"<user>u<assistant>[{{}}]<tool>{TEXT}\n\nt<assistant>"),
        ((S, LATE, LATER, U), "<system>s\n\nlate\n\nlater<user>u<assistant>"),
    ],
)
def test_later_system_message_becomes_text_of_an_adjacent_message(
    messages: tuple[dict[str, Any], ...], prompt: str
) -> None:
    assert prompt_of(FIRST_SYSTEM, *messages) == prompt


NAMED = CALLS.replace("%s", "{{ c.id }}")
NINE = CALLS.replace("%s", "{{ raise_exception('nine') if c.id | length != 9 }}{{ c.function.name }}#{{ c.id }}")
ONE = CALLS.replace("%s", "{{ raise_exception('one') if m.tool_calls | length > 1 }}{{ c.function.name }}")
OWN = "functions.f:7"
BOTH = message_with_calls({"id": "c1"}, {"id": "c2"})


@pytest.mark.parametrize(
    ("source", "messages", "prompt"),
    [
        (
            NAMED,
            (CALL, T, CALL, T),
            "".join(f"<assistant>[functions.f:{n}{{}}]<tool>t(functions.f:{n})" for n in (0, 1)),
        ),
        (NAMED, (message_with_calls({"id": OWN}), {**T, "tool_call_id": OWN}), f"<assistant>[{OWN}{{}}]<tool>t({OWN})"),
        (NINE, (CALL, T), "<assistant>[f#ex25pqAaj{}]<tool>t(ex25pqAaj)"),
        (NINE, (A, CALL, T), "<assistant>a<assistant>[f#ex25pqAaj{}]<tool>t(ex25pqAaj)"),
        (NINE, (message_with_calls({}), message("tool", "t")), "<assistant>[f#EgZa0hQnp{}]<tool>t(EgZa0hQnp)"),
        (
            ONE,
            (BOTH, message("tool", "second", tool_call_id="c2"), T),
            "<assistant>[f{}]<tool>t(c1)<assistant>[f{}]<tool>second(c2)",
        ),
    ],
)
def test_call_ids_and_number_of_calls_are_adapted_to_the_template(
    source: str, messages: tuple[dict[str, Any], ...], prompt: str
) -> None:
    assert prompt_of(source, U, *messages) == f"<user>u{prompt}"


NO_TYPE = {"properties": {"a": {}, "b": True, "c": {"anyOf": [{"type": "null"}, {"type": "number"}]}}}
NESTED = {
    "type": "object",
    "properties": {
        "a": {"type": ["string", "null"]},
        "b": {"type": "array", "items": {"type": "object", "properties": {"c": {"$ref": "#/$defs/d"}}}},
        "e": {"type": "object"},
        "f": {"enum": [1, None]},
    },
    "$defs": {"d": {"const": 1}},
    "additionalProperties": False,
}


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_tools_with_incomplete_schemas_are_rendered(name: str) -> None:
    functions: list[dict[str, Any]] = [{"name": "bare"}, {"name": "empty", "parameters": {}}]
    functions += [{"name": f"schema{n}", "parameters": schema} for n, schema in enumerate((NO_TYPE, NESTED))]
    for function in functions:
        text = template_of(name).render([U], tools=[{"type": "function", "function": function}]).text
        assert function["name"] in text


def test_tools_are_described_in_a_message_if_the_template_fails_on_them() -> None:
    source = (
        "{% for t in tools or [] %}{{ t.function.parameters.properties.a.own.thing }}{{ t | tojson }}{% endfor %}"
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    )
    function = {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert prompt_of(source, U, tools=[{"type": "function", "function": function}]).startswith(
        "<system>You can call fun"
    )


def test_too_deeply_nested_tools_are_rejected() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(InvalidRequest, match="tools: their schemas nest too deeply"):
        prompt_of(FIRST_SYSTEM, U, tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])


@pytest.mark.parametrize(
    "arguments", [f'{{"a": {"9" * 5000}}}', "9" * 5000, f'{{"a": {"[" * 3000}', '{"a": 1e99999}', '{"a": NaN']
)
@pytest.mark.parametrize(
    "source", [CALLS.replace("%s", ""), FIRST_SYSTEM, "{% for m in messages %}{{ m.role }}{{ m.content }}{% endfor %}"]
)
def test_malformed_arguments_of_earlier_calls_are_rendered(source: str, arguments: str) -> None:
    call = {"type": "function", "id": "c1", "function": {"name": "f", "arguments": arguments}}
    prompt = prompt_of(source, U, message("assistant", "", tool_calls=[call]), T, U)
    assert arguments[-500:].strip("}")[-5:] in prompt or "Infinity" in prompt


@needs_templates
@pytest.mark.parametrize("answered", [True, False])
def test_harmony_text_next_to_reasoning_and_a_call_becomes_a_preamble(answered: bool) -> None:
    call = {**CALL, "content": "I look.", "reasoning_content": "Hm."}
    rest = [A, U] if answered else []
    rendered = template_of("openai-gpt-oss-120b").render([U, call, T, *rest])
    preamble = "<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f"
    assert preamble in rendered.text
    assert ("<|channel|>analysis<|message|>Hm.<|end|>" in rendered.text) is not answered
    assert rendered.text.count("<|channel|>final") == answered
    assert rendered.text.endswith(rendered.generation_prompt)
    assert "preamble" not in rendered.text


@needs_templates
def test_harmony_text_before_a_call_without_reasoning_stays_analysis() -> None:
    text = template_of("openai-gpt-oss-120b").render([U, {**CALL, "content": "I look."}, T]).text
    assert "<|channel|>analysis<|message|>I look.<|end|>" in text


class CountingId(str):
    """An id that counts comparisons."""

    n_comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountingId.n_comparisons += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def test_results_are_matched_to_calls_in_linear_time() -> None:
    ids = [f"id{n}" for n in range(500)]
    results = [message("tool", "t", tool_call_id=CountingId(each)) for each in reversed(ids)]
    calls: list[dict[str, str]] = [{"id": CountingId(each)} for each in ids]
    _with_ids([message_with_calls(*calls), *results], make_template(NINE).capabilities)
    assert CountingId.n_comparisons < 10 * len(ids)
