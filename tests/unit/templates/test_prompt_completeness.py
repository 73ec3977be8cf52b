"""Random conversations: the prompt of every template contains every text, in order.

The templates are those of llama.cpp's source distribution and the built-in ones. `EXHAUSTIVE=1` tries many more
conversations.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.templates.capabilities import EFFORTS
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATE_NAMES
from tests.support.sampling import EXHAUSTIVE
from tests.unit.templates import hugging_face
from tests.unit.templates.conversations import TOOLS, Chat, Message
from tests.unit.templates.corpus import BUILT_IN, DATES, template_of
from tests.unit.templates.needles import Needles, missing_text, render_fault

pytestmark = pytest.mark.slow

_ALTERNATING = ("Mistral-Small-3.2-24B-Instruct-2506", "google-gemma-2-2b-it")
"""Templates that require alternating roles. Later system messages become text of an adjacent message."""
_N_EXAMPLES = 300 if EXHAUSTIVE else 12


@pytest.fixture(scope="module", params=[*TEMPLATE_NAMES, *BUILT_IN])
def template(request: pytest.FixtureRequest) -> ChatTemplate:
    return template_of(str(request.param))


_KINDS = ("user",) * 4 + ("assistant", "system", "developer") * 2 + ("calls",) * 4 + ("empty", "result without call")


@st.composite
def _contents(draw: st.DrawFn, needle: Needles) -> Any:
    n_parts = draw(st.sampled_from((0, 0, 0, 1, 2)))
    return [{"type": "text", "text": needle()} for _ in range(n_parts)] or needle()


@st.composite
def _turn(draw: st.DrawFn, needle: Needles) -> list[Message]:
    """Draw a message, or a message with calls and some of their results."""
    kind = draw(st.sampled_from(_KINDS))
    if kind == "empty":
        return [{"role": "assistant", "content": ""}]
    if kind == "result without call":
        return [{"role": "tool", "content": draw(_contents(needle)), "tool_call_id": needle()}]
    if kind != "calls":
        message: Message = {"role": kind, "content": draw(_contents(needle))}
        if kind == "assistant" and draw(st.booleans()):
            message["reasoning_content"] = "So."
        return [message]
    ids = [f"{draw(st.sampled_from(('call_', 'toolu_01', 'x')))}{needle()}" for _ in range(draw(st.integers(1, 3)))]
    end = draw(st.sampled_from(('"}', '"}', '"}', '", "unit": "C', "", '", "unit')))  # or a truncation
    calls = [_call(call_id, f'{{"city": "{needle()}{end}') for call_id in ids]
    content = draw(_contents(needle)) if draw(st.booleans()) else ""
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    if draw(st.booleans()):
        message["reasoning_content"] = "I need it."
    n_results = draw(st.sampled_from((len(ids), len(ids), len(ids), 0)))
    results = [{"role": "tool", "content": draw(_contents(needle)), "tool_call_id": call} for call in ids[:n_results]]
    for result in results:
        if draw(st.booleans()):
            result["name"] = "get_weather"
    if draw(st.integers(0, 5)) == 0:
        for each in (*calls, *results):
            each.pop("id" if "id" in each else "tool_call_id")
    between = draw(st.sampled_from(([], [], [], [], ["system"], ["user"])))
    return [message, *({"role": role, "content": needle()} for role in between), *results]


def _call(call_id: str, arguments: str) -> Message:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"id": call_id, **call} if call_id else call


@st.composite
def _chats(draw: st.DrawFn) -> Chat:
    needle = Needles()
    messages = [each for _ in range(draw(st.integers(1, 6))) for each in draw(_turn(needle))]
    return Chat(tuple(messages), TOOLS if draw(st.booleans()) else None)


_UNKNOWN = {"role": "tool", "content": "Ndl004q", "tool_call_id": "unknown"}
_RESULT = {"role": "tool", "content": "Ndl003q"}
_UNNAMED = _call("", '{"city": "Ndl001q"}')
_FOUND_BY_SEARCH = (
    Chat(({"role": "assistant", "content": ""},)),
    Chat(({"role": "developer", "content": "Ndl001q"}, {"role": "system", "content": "Ndl002q"})),
    Chat(({"role": "assistant", "content": "", "tool_calls": [_UNNAMED]},)),
    Chat(({"role": "assistant", "content": "", "tool_calls": [_UNNAMED]}, _RESULT, _UNKNOWN)),
    Chat(({"role": "system", "content": "Ndl001q"},), TOOLS),
    Chat(
        (
            {"role": "assistant", "content": "", "tool_calls": [_UNNAMED, _call("", '{"city": "Ndl002q"}')]},
            _UNKNOWN,
            {"role": "system", "content": "Ndl005q"},
        )
    ),
)
"""Chats for which some template once failed or lost a text."""


def test_prompt_of_chats_that_once_failed_is_complete(template: ChatTemplate) -> None:
    assert [fault for chat in _FOUND_BY_SEARCH if (fault := render_fault(template, chat))] == []


def test_every_reasoning_effort_is_accepted(template: ChatTemplate) -> None:
    messages = ({"role": "user", "content": "Ndl001q"},)
    chats = [Chat(messages, kwargs={"reasoning_effort": effort}) for effort in EFFORTS]
    assert [fault for chat in chats if (fault := render_fault(template, chat))] == []


@st.composite
def _plain_chats(draw: st.DrawFn) -> Chat:
    """Draw a chat of plain texts and complete calls, which needs no adaptation independent of its other messages."""
    needle = Needles()
    messages: list[Message] = []
    for kind in draw(st.lists(st.sampled_from(("user", "user", "assistant", "system", "calls")), min_size=1)):
        if kind != "calls":
            messages.append({"role": kind, "content": needle()})
            continue
        ids = [f"call{len(messages)}{number:04}" for number in range(draw(st.integers(1, 2)))]
        content = needle() if draw(st.booleans()) else ""
        calls = [_call(call_id, f'{{"city": "{needle()}"}}') for call_id in ids]
        messages.append({"role": "assistant", "content": content, "tool_calls": calls})
        messages += ({"role": "tool", "content": needle(), "tool_call_id": each, "name": "get_weather"} for each in ids)
    return Chat(tuple(messages))


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
@given(chat=_plain_chats())
@settings(max_examples=_N_EXAMPLES)
def test_chat_that_a_template_shows_completely_is_not_adapted(name: str, chat: Chat) -> None:
    expected = hugging_face.prompt(
        template_of(name).source,
        chat,
        text_arguments=name in hugging_face.TEXT_ARGUMENTS,
        **{**DATES, "functions": "[]", "enable_thinking": True, "add_generation_prompt": True},
    )
    has_late_system = "system" in [message["role"] for message in chat.messages[1:]]
    is_incomplete = expected.startswith("!") or missing_text(chat.messages, expected)
    if not is_incomplete and not (has_late_system and name in _ALTERNATING):
        assert template_of(name).render(chat.messages).text == expected


@given(chat=_chats())
@settings(max_examples=_N_EXAMPLES)
def test_prompt_of_random_chats_is_complete(template: ChatTemplate, chat: Chat) -> None:
    assert render_fault(template, chat) == ""
