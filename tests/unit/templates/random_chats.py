"""Chats put together by chance, of texts that mean something to some template."""

from random import Random
from typing import Any

from tests.unit.templates.conversations import TOOLS, Chat, Message, call, says

_WORDS = """
Hello 0 None false é 👋 ' " & <b> \\n {{x}} {%raw%} <s> </s> <|im_end|> <|eot_id|> [/INST] [TOOL_CALLS] /think
/no_think <think> </think> [THINK] [/THINK] <tool_call> </tool_call> <tool_response> </tool_response>
<|channel|>final<|message|>
"""
_BITS = (*_WORDS.split(), " ", "\n", "\n\n", "\t", "\u00a0", "\u3000", "\u2028")
_VALUES = (1, 1.5, True, None, "x", [1, "a"], {"b": "<c>"})
_KWARGS: tuple[dict[str, Any], ...] = ({}, {}, {"reasoning_effort": "low"}, {"preserve_reasoning": True})


def random_text(random: Random) -> str:
    """Up to six bits."""
    return "".join(random.choices(_BITS, k=random.randrange(7)))


def answer(random: Random) -> Message:
    """The assistant's, with reasoning or without."""
    message = says("assistant", random_text(random))
    return {**message, "reasoning_content": random_text(random) or "t"} if random.random() < 0.5 else message


def random_chat(random: Random) -> Chat:
    """It ends with a user's message or with results."""
    messages = [says("system", random_text(random))] if random.random() < 0.4 else []
    messages.append(says("user", random_text(random)))
    n_calls = 0
    for _ in range(random.randrange(4)):
        if random.random() < 0.4:
            messages += [answer(random), says("user", random_text(random))]
            continue
        calls = []
        for _ in range(random.choice((1, 1, 2))):
            n_calls += 1
            arguments = {"city": random_text(random), "n": random.choice(_VALUES)}
            calls.append(call(n_calls, random.choice(("get_weather", "get_time")), **arguments))
        messages.append({**answer(random), "tool_calls": calls})
        for made in calls:
            name = made["function"]["name"]
            messages.append(says("tool", random_text(random), tool_call_id=made["id"], name=name))
    return Chat(tuple(messages), random.choice((None, TOOLS)), random.choice(_KWARGS))
