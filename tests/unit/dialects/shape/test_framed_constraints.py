"""Constraints of chats in formats whose answers have markup of their own: what they let pass, the parser reads."""

from typing import Any

import pytest

from server.chat.conversation import Tools, template_tools
from server.errors import InvalidRequest
from server.structured.constraint import Constraint
from server.structured.grammar.compiler import GrammarCompiler
from tests.unit.dialects.builders import answer_of, make_model
from tests.unit.dialects.chat.test_chat_output import FORMAT, accepts, choosing
from tests.unit.formats.reading import Read, output_parser, read

TURNS = {
    # template's signs: the generation prompt, thoughts to their end, what begins an answer, a call
    "<|channel|>analysis<|message|>": (
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 5}',
    ),
    "<|channel|>analysis<|message|> with the recipient first": (
        "<|start|>assistant",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        "<|channel|>final<|message|>",
        ' to=functions.f<|channel|>commentary json<|message|>{"a": 5}',
    ),
    "<|open|><|close|><|end_of_msg|>": (
        '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>',
        "Hm.<|close|>think<|sep|>",
        "<|open|>response<|sep|>",
        '<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="a" type="number"<|sep|>5'
        "<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    "<|START_ACTION|><|END_ACTION|><|END_THINKING|><|START_RESPONSE|>": (
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
        "<|START_THINKING|>Hm.<|END_THINKING|>",
        "<|START_RESPONSE|>",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 5}}\n]<|END_ACTION|>',
    ),
    "<|START_ACTION|><|END_ACTION|><|END_THINKING|><|START_TEXT|>": (
        "<|CHATBOT_TOKEN|><|START_THINKING|>",
        "Hm.<|END_THINKING|>",
        "<|START_TEXT|>",
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "f", "parameters": {"a": 5}}\n]<|END_ACTION|>',
    ),
    "<|tool_call:begin|><|tool_call:name|>": (
        "<|begin|>assistant",
        "<|think|>Hm.<|end|><|begin|>assistant",
        "<|content|>",
        '<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>f<|tool_call:args|>{"a": 5}<|tool_call:end|>',
    ),
    "<atem:function_calls><|eom|>": (
        "<|start|>assistant",
        " to=self<|message|>Hm.<|eom|><|start|>assistant",
        " to=user<|message|>",
        ' to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n<atem:parameter name="a">5</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls>",
    ),
    ">>>all>>>${recipient}": ("assistant<|end_header_id|>\n\n>>>", "", "all\n", 'f\n{"a": 5}'),
    "<|tools_prefix|>": (
        "<|assistant_start|>",
        "<|inner_prefix|>Hm.<|inner_suffix|>",
        "",
        '<|tools_prefix|>[{"f": {"a": 5}}]<|tools_suffix|>',
    ),
    "<|message_model|><|content_invoke_tool_json|>": (
        "<|message_model|>",
        "<|content_thinking|>Hm.<|end_message|><|message_model|>",
        "<|content_text|>",
        'f<|content_invoke_tool_json|>{"name": "f", "args": {"a": 5}}',
    ),
    "<tool_calls><answer></answer><think></think>": (
        "assistant",
        "<think>\nHm.\n</think>\n",
        "<answer>\n",
        '<tool_calls>[{"name": "f", "arguments": {"a": 5}}]</tool_calls>',
    ),
    "<|tool_calls_section_begin|><|tool_call_begin|></think>": (
        "<|im_assistant|>assistant<|im_middle|>",
        "<think>Hm.</think>",
        "",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"a": 5}'
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "<tool_call></tool_call><think></think>": (
        "assistant\n",
        "<think>\nHm.\n</think>\n\n",
        "",
        '<tool_call>\n{"name": "f", "arguments": {"a": 5}}\n</tool_call>',
    ),
}
CASES = [pytest.param(signs, *turn, id=signs) for signs, turn in TURNS.items()]
ANSWER = '{"b": 1}'
OTHER = '{"b": 2}'


def model_of(signs: str) -> Any:
    model: Any = make_model(template="{{ messages }}{{ tools }}{# " + signs + " #}")
    model.grammar = GrammarCompiler(model.vocab)
    return model


def made(signs: str, prompt: str, tools: Tools, fresh: bool = True, **fields: Any) -> Constraint | None:
    return answer_of(model_of(signs), prompt, tools=tools, opens=fresh, **fields)


def said(signs: str, prompt: str, text: str) -> Read:
    tools = template_tools(choosing("auto").tools)
    return read(
        output_parser(
            model_of(signs).template,
            tools=tools,
            parse_tools=True,
            reasoning_format="auto",
            generation_prompt=prompt,
            parallel_tool_calls=True,
        ),
        text,
    )


@pytest.mark.parametrize(("signs", "prompt", "thoughts", "lead", "call"), CASES)
def test_a_schema_holds_behind_thoughts_and_markup(
    signs: str, prompt: str, thoughts: str, lead: str, call: str
) -> None:
    for tools in (Tools(), choosing("auto")):
        answer = made(signs, prompt, tools, response_format=FORMAT)
        assert accepts(answer, thoughts + lead + ANSWER)
        assert not accepts(made(signs, prompt, tools, response_format=FORMAT), thoughts + lead + OTHER)
        if lead:
            assert not accepts(made(signs, prompt, tools, response_format=FORMAT), thoughts + ANSWER)
    found = said(signs, prompt, thoughts + lead + ANSWER)
    assert (found.content, found.reasoning) == (ANSWER, "Hm." if thoughts else "")


@pytest.mark.parametrize(("signs", "prompt", "thoughts", "lead", "call"), CASES)
def test_a_call_may_come_instead_or_must(signs: str, prompt: str, thoughts: str, lead: str, call: str) -> None:
    text = thoughts + call
    assert accepts(made(signs, prompt, choosing("auto"), response_format=FORMAT), text)
    assert accepts(made(signs, prompt, choosing("required")), text)
    assert not accepts(made(signs, prompt, choosing("required")), text.replace("5", '"5"'))
    assert not accepts(made(signs, prompt, choosing("required")), thoughts + lead + "Hello")
    found = said(signs, prompt, text)
    assert (found.calls, found.content, found.reasoning) == ([("f", '{"a": 5}')], "", "Hm." if thoughts else "")


def test_a_grammar_of_ones_own_holds_from_the_first_token_on_where_an_answer_has_no_markup() -> None:
    plain, framed = "<tool_call></tool_call><think></think>", "<|channel|>analysis<|message|>"
    grammar = 'root ::= "<think>a</think>b" | "yes"'
    for text, fits in (("<think>a</think>b", True), ("yes", True), ("<think>c</think>yes", False)):
        assert accepts(made(plain, "assistant\n", Tools(), grammar=grammar), text) is fits
    text = TURNS[framed][1] + TURNS[framed][2] + "yes"
    assert accepts(made(framed, "<|start|>assistant", Tools(), grammar=grammar), text)


def test_where_thoughts_stay_in_the_content_none_come_before_a_schema() -> None:
    model = model_of("<tool_call></tool_call><think></think>")
    answer = answer_of(model, "assistant\n", reasoning_format="none", response_format=FORMAT)
    assert not accepts(answer, "<think>a</think>" + ANSWER)


@pytest.mark.parametrize("signs", ["<tool_call></tool_call><think></think>", "<|channel|>analysis<|message|>"])
def test_a_json_text_that_the_prompt_has_begun_is_gone_on_with(signs: str) -> None:
    for tools in (Tools(), choosing("auto")):
        for begun, rest, fits in (
            ('{"b":', " 1}", True),
            ('{"b":', ' {"b": 1}', False),
            (ANSWER, "", True),
            (ANSWER, ANSWER, False),
            ("```json\n", ANSWER, True),  # what is no beginning of it is none of its business
        ):
            answer = answer_of(
                model_of(signs), begun, tools=tools, opens=False, prefilled=begun, response_format=FORMAT
            )
            assert accepts(answer, rest) is fits


def test_a_very_long_beginning_is_refused() -> None:
    model = model_of("<think></think>")
    with pytest.raises(InvalidRequest, match="at most 65536") as caught:
        answer_of(model, opens=False, prefilled=" " * 65537, response_format=FORMAT)
    assert caught.value.param == "messages"
