"""Every text of a conversation stands in the prompt, in order, whatever the template can take.

For every template of the source distribution and every built-in one: conversations that are put together by chance.
`EXHAUSTIVE=1` looks at many more of those.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from server.templates.capabilities import EFFORTS
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATE_NAMES
from tests.support.sampling import EXHAUSTIVE
from tests.unit.templates import hugging_face
from tests.unit.templates.conversations import TOOLS, Chat, Message
from tests.unit.templates.corpus import BUILT_IN, DATES, template_of
from tests.unit.templates.needles import Needles, answer, unshown

pytestmark = pytest.mark.slow

_ALTERNATES = ("Mistral-Small-3.2-24B-Instruct-2506", "google-gemma-2-2b-it")
"""These count turns. A later system message becomes text of its neighbour, as if an answer followed."""
_N_EXAMPLES = 300 if EXHAUSTIVE else 12


@pytest.fixture(scope="module", params=[*TEMPLATE_NAMES, *BUILT_IN])
def template(request: pytest.FixtureRequest) -> ChatTemplate:
    return template_of(str(request.param))


_KINDS = ("user",) * 4 + ("assistant", "system", "developer") * 2 + ("calls",) * 4 + ("nothing", "a lost call's result")


@some.composite
def _contents(draw: some.DrawFn, needle: Needles) -> Any:
    n_parts = draw(some.sampled_from((0, 0, 0, 1, 2)))
    return [{"type": "text", "text": needle()} for _ in range(n_parts)] or needle()


@some.composite
def _turn(draw: some.DrawFn, needle: Needles) -> list[Message]:
    """What one side says: a message, or calls with the results that have come."""
    kind = draw(some.sampled_from(_KINDS))
    if kind == "nothing":
        return [{"role": "assistant", "content": ""}]
    if kind == "a lost call's result":
        return [{"role": "tool", "content": draw(_contents(needle)), "tool_call_id": needle()}]
    if kind != "calls":
        message: Message = {"role": kind, "content": draw(_contents(needle))}
        if kind == "assistant" and draw(some.booleans()):
            message["reasoning_content"] = "So."
        return [message]
    ids = [f"{draw(some.sampled_from(('call_', 'toolu_01', 'x')))}{needle()}" for _ in range(draw(some.integers(1, 3)))]
    cut = draw(some.sampled_from(('"}', '"}', '"}', '", "unit": "C', "", '", "unit')))
    calls = [_call(call_id, f'{{"city": "{needle()}{cut}') for call_id in ids]
    content = draw(_contents(needle)) if draw(some.booleans()) else ""
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    if draw(some.booleans()):
        message["reasoning_content"] = "I need it."
    n_results = draw(some.sampled_from((len(ids), len(ids), len(ids), 0)))
    results = [{"role": "tool", "content": draw(_contents(needle)), "tool_call_id": call} for call in ids[:n_results]]
    for result in results:
        if draw(some.booleans()):
            result["name"] = "get_weather"
    if draw(some.integers(0, 5)) == 0:
        for said in (*calls, *results):
            said.pop("id" if "id" in said else "tool_call_id")
    between = draw(some.sampled_from(([], [], [], [], ["system"], ["user"])))
    return [message, *({"role": role, "content": needle()} for role in between), *results]


def _call(call_id: str, arguments: str) -> Message:
    call = {"type": "function", "function": {"name": "get_weather", "arguments": arguments}}
    return {"id": call_id, **call} if call_id else call


@some.composite
def _chats(draw: some.DrawFn) -> Chat:
    needle = Needles()
    messages = [each for _ in range(draw(some.integers(1, 6))) for each in draw(_turn(needle))]
    return Chat(tuple(messages), TOOLS if draw(some.booleans()) else None)


_UNKNOWN = {"role": "tool", "content": "Ndl004q", "tool_call_id": "unknown"}
_RESULT = {"role": "tool", "content": "Ndl003q"}
_UNNAMED = _call("", '{"city": "Ndl001q"}')
_FOUND = (
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
"""The search's finds, all of them in chats that have lost something already."""


def test_what_was_lost_once_is_shown(template: ChatTemplate) -> None:
    assert [why for chat in _FOUND if (why := answer(template, chat))] == []


def test_no_effort_is_refused(template: ChatTemplate) -> None:
    asked = ({"role": "user", "content": "Ndl001q"},)
    chats = [Chat(asked, kwargs={"reasoning_effort": effort}) for effort in EFFORTS]
    assert [why for chat in chats if (why := answer(template, chat))] == []


@some.composite
def _plain_chats(draw: some.DrawFn) -> Chat:
    """Of texts alone; nothing in them that is rewritten for a template without a look at the chat."""
    needle = Needles()
    messages: list[Message] = []
    for kind in draw(some.lists(some.sampled_from(("user", "user", "assistant", "system", "calls")), min_size=1)):
        if kind != "calls":
            messages.append({"role": kind, "content": needle()})
            continue
        ids = [f"call{len(messages)}{number:04}" for number in range(draw(some.integers(1, 2)))]
        content = needle() if draw(some.booleans()) else ""
        calls = [_call(call_id, f'{{"city": "{needle()}"}}') for call_id in ids]
        messages.append({"role": "assistant", "content": content, "tool_calls": calls})
        messages += ({"role": "tool", "content": needle(), "tool_call_id": each, "name": "get_weather"} for each in ids)
    return Chat(tuple(messages))


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
@given(chat=_plain_chats())
@settings(max_examples=_N_EXAMPLES)
def test_a_conversation_that_a_template_shows_is_given_as_it_is(name: str, chat: Chat) -> None:
    theirs = hugging_face.prompt(
        template_of(name).source,
        chat,
        text_arguments=name in hugging_face.TEXT_ARGUMENTS,
        **{**DATES, "functions": "[]", "enable_thinking": True, "add_generation_prompt": True},
    )
    late = "system" in [message["role"] for message in chat.messages[1:]]
    adapted = theirs.startswith("!") or unshown(chat.messages, theirs) or (late and name in _ALTERNATES)
    if not adapted:
        assert template_of(name).render(chat.messages).text == theirs


@given(chat=_chats())
@settings(max_examples=_N_EXAMPLES)
def test_any_conversation_is_shown(template: ChatTemplate, chat: Chat) -> None:
    assert answer(template, chat) == ""
