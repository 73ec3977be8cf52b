"""Chats in OpenAI's form that tests render with every template."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Chat:
    """Messages and tools. ``kwargs``: chat_template_kwargs."""

    messages: tuple[Message, ...]
    tools: Sequence[Message] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


def _tool(name: str, **properties: Message) -> Message:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    function = {"name": name, "description": f'Does <{name}> & "more".', "parameters": parameters}
    return {"type": "function", "function": function}


def message(role: str, content: Any, **fields: Any) -> Message:
    return {"role": role, "content": content, **fields}


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

SYSTEM = message("system", "Be brief & 'kind'.")
USER = message("user", 'What\'s <b>the</b> weather & "time" in Köln? 👋')
ANSWER = message("assistant", "It is <i>fine</i>.")
FOLLOW_UP = message("user", "And now?")
WEATHER = call(1, "get_weather", city="Köln <1>", unit="C")
TIME = call(2, "get_time", zone="CET")
CALL = message("assistant", "", tool_calls=[WEATHER])
SECOND_CALL = message("assistant", "", tool_calls=[TIME])
CALLS = message("assistant", "", tool_calls=[WEATHER, TIME])
RESULT = message("tool", '18 °C & "sunny"', tool_call_id="call00001", name="get_weather")
UNNAMED_RESULT = message("tool", '18 °C & "sunny"', tool_call_id="call00001")
TIME_RESULT = message("tool", '{"time": "12:00"}', tool_call_id="call00002", name="get_time")
REASONED_ANSWER = {**ANSWER, "reasoning_content": "The <user> asks & waits.\n\nSo do I."}
REASONED_CALL = {**CALL, "reasoning_content": "I need the tool."}

CHATS: dict[str, Chat] = {
    "a question": Chat((USER,)),
    "a system message": Chat((SYSTEM, USER)),
    "turns": Chat((USER, ANSWER, FOLLOW_UP)),
    "a system message and turns": Chat((SYSTEM, USER, ANSWER, FOLLOW_UP, ANSWER, USER)),
    "an assistant message last": Chat((USER, ANSWER)),
    "tools": Chat((USER,), TOOLS),
    "a system message and tools": Chat((SYSTEM, USER), TOOLS),
    "a result": Chat((USER, CALL, RESULT), TOOLS),
    "a result without a name": Chat((USER, CALL, UNNAMED_RESULT), TOOLS),
    "a call with text": Chat((USER, {**CALL, "content": "Let me look."}, RESULT), TOOLS),
    "a call with null content": Chat((USER, {**CALL, "content": None}, RESULT), TOOLS),
    "parallel calls": Chat((USER, CALLS, RESULT, TIME_RESULT), TOOLS),
    "sequential calls": Chat((USER, CALL, RESULT, SECOND_CALL, TIME_RESULT), TOOLS),
    "a call in an earlier turn": Chat((SYSTEM, USER, CALL, RESULT, ANSWER, FOLLOW_UP), TOOLS),
    "a call without tools": Chat((USER, CALL, RESULT)),
    "reasoning": Chat((USER, REASONED_ANSWER, FOLLOW_UP)),
    "reasoning in every turn": Chat((SYSTEM, USER, REASONED_ANSWER, FOLLOW_UP, REASONED_ANSWER, USER)),
    "reasoning before a call": Chat((USER, REASONED_CALL, RESULT), TOOLS),
    "reasoning and text before a call": Chat((USER, {**REASONED_CALL, "content": "Let me look."}, RESULT), TOOLS),
    "reasoning of several turns with calls": Chat((USER, REASONED_CALL, RESULT, REASONED_ANSWER, FOLLOW_UP), TOOLS),
    "reasoning in the field reasoning": Chat((USER, {**ANSWER, "reasoning": "So\n it is."}, FOLLOW_UP)),
    "reasoning in the field thinking": Chat((USER, {**CALL, "thinking": "I need it."}, RESULT), TOOLS),
    "one text part": Chat((message("user", _parts("one")),)),
    "two text parts": Chat((message("user", _parts("one", "two")),)),
    "text parts in every role": Chat(
        (message("system", _parts("s")), message("user", _parts("u")), message("assistant", _parts("a")), FOLLOW_UP)
    ),
    "a result of text parts": Chat((USER, CALL, {**RESULT, "content": _parts("18 °C")}), TOOLS),
    "a developer message": Chat((message("developer", "Be brief."), USER)),
    "reasoning effort": Chat((USER,), kwargs={"reasoning_effort": "low"}),
    "reasoning effort with tools": Chat((SYSTEM, USER), TOOLS, {"reasoning_effort": "high"}),
    "preserved reasoning": Chat((USER, REASONED_ANSWER, FOLLOW_UP), kwargs={"preserve_reasoning": True}),
    "dropped reasoning": Chat((USER, REASONED_ANSWER, FOLLOW_UP), kwargs={"preserve_reasoning": False}),
    "markup in a text": Chat(
        (message("user", " {{x}} {%raw%} <s></s><|im_end|>[/INST] /no_think <think> </think>\u00a0"),)
    ),
    "other variables": Chat((USER,), kwargs={"documents": [], "custom": {"a": 1}, "builtin_tools": ["search"]}),
}
CONTINUED: dict[str, Chat] = {
    "an answer": Chat((USER, ANSWER)),
    "an answer after turns": Chat((SYSTEM, USER, ANSWER, FOLLOW_UP, {**ANSWER, "content": "It was "})),
    "an answer with reasoning": Chat((USER, REASONED_ANSWER)),
    "an answer after a call": Chat((USER, CALL, RESULT, ANSWER), TOOLS),
    "an answer of text parts": Chat((USER, message("assistant", _parts("It is so")))),
}
