"""Chats as OpenAI's clients send them, for every template."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    """Messages and what comes with them; ``kwargs`` are chat_template_kwargs."""

    messages: tuple[Message, ...]
    tools: Sequence[Message] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


def _tool(name: str, **properties: Message) -> Message:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    function = {"name": name, "description": f'Does <{name}> & "more".', "parameters": parameters}
    return {"type": "function", "function": function}


def says(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def call(number: int, name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def _parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


_CITY = {"type": "string", "description": "The city's name"}
_UNIT = {"type": "string", "enum": ["C", "F"], "description": "Degrees"}
TOOLS = (
    _tool("get_weather", city=_CITY, unit=_UNIT),
    _tool("get_time", zone={"type": "string", "description": "Zone"}),
)

SYSTEM = says("system", "Be brief & 'kind'.")
USER = says("user", 'What\'s <b>the</b> weather & "time" in Köln? 👋')
ANSWER = says("assistant", "It is <i>fine</i>.")
AGAIN = says("user", "And now?")
WEATHER = call(1, "get_weather", city="Köln <1>", unit="C")
TIME = call(2, "get_time", zone="CET")
CALL = says("assistant", "", tool_calls=[WEATHER])
CALL_AGAIN = says("assistant", "", tool_calls=[TIME])
CALLS = says("assistant", "", tool_calls=[WEATHER, TIME])
RESULT = says("tool", '18 °C & "sunny"', tool_call_id="call00001", name="get_weather")
UNNAMED = says("tool", '18 °C & "sunny"', tool_call_id="call00001")
TIME_RESULT = says("tool", '{"time": "12:00"}', tool_call_id="call00002", name="get_time")
THOUGHT = {**ANSWER, "reasoning_content": "The <user> asks & waits.\n\nSo do I."}
THOUGHT_CALL = {**CALL, "reasoning_content": "I need the tool."}

CHATS: dict[str, Chat] = {
    "a question": Chat((USER,)),
    "a system message": Chat((SYSTEM, USER)),
    "turns": Chat((USER, ANSWER, AGAIN)),
    "a system message and turns": Chat((SYSTEM, USER, ANSWER, AGAIN, ANSWER, USER)),
    "an answer last": Chat((USER, ANSWER)),
    "tools": Chat((USER,), TOOLS),
    "a system message and tools": Chat((SYSTEM, USER), TOOLS),
    "a result": Chat((USER, CALL, RESULT), TOOLS),
    "a result without a name": Chat((USER, CALL, UNNAMED), TOOLS),
    "a call beside text": Chat((USER, {**CALL, "content": "Let me look."}, RESULT), TOOLS),
    "a call with null content": Chat((USER, {**CALL, "content": None}, RESULT), TOOLS),
    "parallel calls": Chat((USER, CALLS, RESULT, TIME_RESULT), TOOLS),
    "calls one after the other": Chat((USER, CALL, RESULT, CALL_AGAIN, TIME_RESULT), TOOLS),
    "a call long ago": Chat((SYSTEM, USER, CALL, RESULT, ANSWER, AGAIN), TOOLS),
    "a call and no tools": Chat((USER, CALL, RESULT)),
    "reasoning": Chat((USER, THOUGHT, AGAIN)),
    "reasoning in every turn": Chat((SYSTEM, USER, THOUGHT, AGAIN, THOUGHT, USER)),
    "reasoning before a call": Chat((USER, THOUGHT_CALL, RESULT), TOOLS),
    "reasoning and text before a call": Chat((USER, {**THOUGHT_CALL, "content": "Let me look."}, RESULT), TOOLS),
    "reasoning of several turns with calls": Chat((USER, THOUGHT_CALL, RESULT, THOUGHT, AGAIN), TOOLS),
    "reasoning under another name": Chat((USER, {**ANSWER, "reasoning": "So\n it is."}, AGAIN)),
    "reasoning under a third name": Chat((USER, {**CALL, "thinking": "I need it."}, RESULT), TOOLS),
    "a part": Chat((says("user", _parts("one")),)),
    "parts": Chat((says("user", _parts("one", "two")),)),
    "parts everywhere": Chat(
        (says("system", _parts("s")), says("user", _parts("u")), says("assistant", _parts("a")), AGAIN)
    ),
    "a result in parts": Chat((USER, CALL, {**RESULT, "content": _parts("18 °C")}), TOOLS),
    "a developer": Chat((says("developer", "Be brief."), USER)),
    "an effort": Chat((USER,), kwargs={"reasoning_effort": "low"}),
    "an effort with tools": Chat((SYSTEM, USER), TOOLS, {"reasoning_effort": "high"}),
    "reasoning to keep": Chat((USER, THOUGHT, AGAIN), kwargs={"preserve_reasoning": True}),
    "reasoning to drop": Chat((USER, THOUGHT, AGAIN), kwargs={"preserve_reasoning": False}),
    "markup in a text": Chat(
        (says("user", " {{x}} {%raw%} <s></s><|im_end|>[/INST] /no_think <think> </think>\u00a0"),)
    ),
    "other variables": Chat((USER,), kwargs={"documents": [], "custom": {"a": 1}, "builtin_tools": ["search"]}),
}
CONTINUED: dict[str, Chat] = {
    "an answer": Chat((USER, ANSWER)),
    "an answer after turns": Chat((SYSTEM, USER, ANSWER, AGAIN, {**ANSWER, "content": "It was "})),
    "an answer with reasoning": Chat((USER, THOUGHT)),
    "an answer after a call": Chat((USER, CALL, RESULT, ANSWER), TOOLS),
    "an answer in parts": Chat((USER, says("assistant", _parts("It is so")))),
}
