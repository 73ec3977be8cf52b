"""The prompts of chats: system prompts, continued messages, and whether the template enables reasoning."""

from dataclasses import replace
from typing import Any

import pytest

from server.chat.prompt import as_text, render
from server.dialects.chat.parse import ChatRequest, apply_template, parse_chat
from server.dialects.dialect import Context
from server.errors import InvalidRequest
from server.pool.spec import ChatParams
from tests.unit.dialects.builders import finished, make_model, started, text

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
    "|{{ enable_thinking }}|{{ reasoning_effort | default('-') }}|"
    "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}{# </think> #}"
)
HI = [{"role": "user", "content": "hi"}]
ASSISTANT_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


def chat(messages: object = HI, **fields: object) -> ChatRequest:
    return parse_chat({"messages": messages, **fields})


def prompt_of(messages: object = HI, *, params: ChatParams | None = None, **fields: object) -> str:
    model = make_model(template=TEMPLATE, chat=params)
    return as_text(render(chat(messages, **fields).conversation, model).parts, "")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_model_system_prompt_applies_to_chats_without_one(role: str) -> None:
    params = ChatParams(system_prompt="be brief")
    assert prompt_of(params=params).startswith("[system]be brief[user]hi")
    assert prompt_of([{"role": role, "content": "be kind"}, *HI], params=params).startswith("[system]be kind[user]hi")


def test_the_model_system_prompt_can_be_disabled() -> None:
    """Transcriptions disable it."""
    model = make_model(template=TEMPLATE, chat=ChatParams(system_prompt="be brief"))
    conversation = replace(chat().conversation, default_system=False)
    assert as_text(render(conversation, model).parts, "").startswith("[user]hi")


@pytest.mark.parametrize(
    ("last", "continued", "end"),
    [
        ({"content": "so"}, None, "so"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, True, "a\n\nb"),
        ({"content": "so", "reasoning_content": "hm"}, "content", "so"),
    ],
)
def test_the_prompt_ends_with_the_continued_message(last: dict[str, Any], continued: object, end: str) -> None:
    prefilled = [*HI, {"role": "assistant", **last}]
    source = "{{ messages | length }}|{% if add_generation_prompt %}>{% endif %}"
    conversation = chat(prefilled, continue_final_message=continued).conversation
    prompt = render(conversation, make_model(template=source))
    rendered = as_text(prompt.parts, "")
    assert rendered.startswith("1|>")
    assert rendered.endswith(end)
    assert prompt.generation_prompt.endswith(end)


def test_reasoning_can_not_be_continued_if_the_template_has_none() -> None:
    prefilled = [*HI, {"role": "assistant", "content": "", "reasoning_content": "hm"}]
    with pytest.raises(InvalidRequest, match="no reasoning"):
        chat(prefilled, continue_final_message=True).generation(Context(make_model(template="{{ messages | length }}")))


@pytest.mark.parametrize("stream", [False, True])
def test_only_a_whole_reply_repeats_the_continued_text(stream: bool) -> None:
    request = chat([*HI, {"role": "assistant", "content": "so "}], stream=stream)
    writer: Any = request.generation(Context(make_model())).writer
    events = (started(), text("it is"), finished())
    if stream:
        assert b"so " not in b"".join(part for event in events for part in writer.feed(0, event))
    else:
        for event in events:
            writer.feed(0, event)
        assert writer.body()["choices"][0]["message"]["content"] == "so it is"


def test_a_conversation_may_end_with_assistant_messages() -> None:
    prompt = apply_template(chat([*HI, ASSISTANT_CALL]).conversation, make_model())["prompt"]
    assert '"f"' in prompt
    assert prompt.endswith("<|im_start|>assistant\n")
    reasoned = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    model = make_model(template="{% for m in messages %}{{ m.content }}|{% endfor %}")
    assert apply_template(chat([*HI, reasoned]).conversation, model)["prompt"].startswith("hi|")
    twice = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert apply_template(chat([*HI, *twice]).conversation, make_model())["prompt"].endswith("b")


@pytest.mark.parametrize(
    ("fields", "enabled"),
    [
        ({}, "True"),
        ({"enable_thinking": False}, "False"),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "False"),
        ({"reasoning_effort": "none"}, "False"),
        ({"reasoning_budget_tokens": 0}, "False"),
        ({"thinking_budget": 0}, "False"),
        ({"thinking": {"type": "disabled"}}, "False"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "False"),
        ({"thinking": {"type": "auto"}}, "True"),
        ({"params": ChatParams(reasoning_budget=0)}, "False"),
        ({"params": ChatParams(reasoning_budget=0), "thinking_budget_tokens": 5}, "True"),
        ({"params": ChatParams(reasoning_budget=0), "thinking_budget_tokens": -1}, "False"),
        ({"params": ChatParams(reasoning="off"), "thinking": {"type": "enabled"}}, "True"),
        ({"params": ChatParams(reasoning="off")}, "False"),
        ({"params": ChatParams(reasoning="off"), "enable_thinking": True}, "True"),
    ],
)
def test_each_reasoning_field_and_option_sets_enable_thinking(fields: dict[str, Any], enabled: str) -> None:
    assert prompt_of(**fields).split("|")[1] == enabled
