from dataclasses import replace
from typing import Any

import pytest

from server.chat.prompt import as_text, render
from server.dialects.chat.parse import ChatRequest, apply_template, parse_chat
from server.dialects.dialect import Context
from server.errors import InvalidRequest
from server.pool.spec import ChatParams
from tests.unit.dialects.builders import finished, make_model, started, text

SHOWS_EVERYTHING = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}>{% endif %}"
    "|{{ enable_thinking }}|{{ reasoning_effort | default('-') }}|"
    "{% for t in tools or [] %}{{ t.function.name }},{% endfor %}{# </think> #}"
)
HI = [{"role": "user", "content": "hi"}]
CALLED = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}


def chat(messages: object = HI, **fields: object) -> ChatRequest:
    return parse_chat({"messages": messages, **fields})


def shown(messages: object = HI, *, params: ChatParams | None = None, **fields: object) -> str:
    model = make_model(template=SHOWS_EVERYTHING, chat=params)
    return as_text(render(chat(messages, **fields).conversation, model).parts, "")


@pytest.mark.parametrize("role", ["system", "developer"])
def test_the_models_system_prompt_is_of_chats_without_one(role: str) -> None:
    params = ChatParams(system_prompt="be brief")
    assert shown(params=params).startswith("[system]be brief[user]hi")
    assert shown([{"role": role, "content": "be kind"}, *HI], params=params).startswith("[system]be kind[user]hi")


def test_a_conversation_without_default_system_prompt_has_none() -> None:
    model = make_model(template=SHOWS_EVERYTHING, chat=ChatParams(system_prompt="be brief"))
    asked = replace(chat().conversation, default_system=False)  # as a transcription's
    assert as_text(render(asked, model).parts, "").startswith("[user]hi")


@pytest.mark.parametrize(
    ("last", "wanted", "end"),
    [
        ({"content": "so"}, None, "so"),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, True, "a\n\nb"),
        ({"content": "so", "reasoning_content": "hm"}, "content", "so"),
    ],
)
def test_a_message_is_continued_where_it_stopped(last: dict[str, Any], wanted: object, end: str) -> None:
    prefilled = [*HI, {"role": "assistant", **last}]
    source = "{{ messages | length }}|{% if add_generation_prompt %}>{% endif %}"
    asked = chat(prefilled, continue_final_message=wanted).conversation
    got = render(asked, make_model(template=source))
    prompt = as_text(got.parts, "")
    assert prompt.startswith("1|>")
    assert prompt.endswith(end)
    assert got.generation_prompt.endswith(end)


def test_thoughts_are_continued_only_where_the_template_has_any() -> None:
    prefilled = [*HI, {"role": "assistant", "content": "", "reasoning_content": "hm"}]
    with pytest.raises(InvalidRequest, match="no reasoning"):
        chat(prefilled, continue_final_message=True).generation(Context(make_model(template="{{ messages | length }}")))


@pytest.mark.parametrize("stream", [False, True])
def test_a_whole_reply_repeats_the_beginning_of_a_continued_message(stream: bool) -> None:
    body = chat([*HI, {"role": "assistant", "content": "so "}], stream=stream)
    writer: Any = body.generation(Context(make_model())).writer
    events = (started(), text("it is"), finished())
    if stream:
        assert b"so " not in b"".join(part for event in events for part in writer.feed(0, event))
    else:
        for event in events:
            writer.feed(0, event)
        assert writer.body()["choices"][0]["message"]["content"] == "so it is"


def test_what_a_model_wrote_may_end_a_conversation() -> None:
    prompt = apply_template(chat([*HI, CALLED]).conversation, make_model())["prompt"]
    assert '"f"' in prompt
    assert prompt.endswith("<|im_start|>assistant\n")
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    plain = make_model(template="{% for m in messages %}{{ m.content }}|{% endfor %}")
    assert apply_template(chat([*HI, thought]).conversation, plain)["prompt"].startswith("hi|")
    twice = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert apply_template(chat([*HI, *twice]).conversation, make_model())["prompt"].endswith("b")


@pytest.mark.parametrize(
    ("fields", "thinking"),
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
def test_thinking_is_switched_by_whoever_says_so(fields: dict[str, Any], thinking: str) -> None:
    assert shown(**fields).split("|")[1] == thinking
