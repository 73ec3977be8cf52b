"""What agents send (Claude Code 2.1, Codex 0.169, opencode), as chats whose every text is a needle."""

from typing import Any

from tests.unit.templates.conversations import TOOLS, Chat, Message, says
from tests.unit.templates.needles import Needles


def _call(call_id: str, needle: str, *, cut: bool = False) -> Message:
    arguments = '{"city": "' + needle + ('", "unit": "C' if cut else '"}')
    return {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def _result(call_id: str, content: Any) -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": "get_weather"}


def _parts(*texts: str) -> list[Message]:
    return [{"type": "text", "text": text} for text in texts]


def shapes() -> dict[str, Chat]:
    """Sixteen of them."""
    n = Needles()
    claude, other = "toolu_01AbCdEfGhIjKlMnOpQrStUv", "toolu_01ZyXwVuTsRqPoNmLkJiHgFe"
    codex = "call_abc123DEF456ghi789JKL0"

    def turn(call_id: str = claude, **more: Any) -> tuple[Message, Message]:
        return says("assistant", "", tool_calls=[_call(call_id, n())], **more), _result(call_id, n())

    def both() -> Message:
        return says("assistant", "", tool_calls=[_call(claude, n()), _call(other, n())])

    return {
        "Claude Code: a system message after the user's": Chat(
            (says("system", _parts(n())), says("user", _parts(n(), n())), says("system", n())), TOOLS
        ),
        "Codex: instructions, two developer messages, two of the user": Chat(
            (says("system", n()), says("developer", n()), says("developer", n()), says("user", n()), says("user", n())),
            TOOLS,
        ),
        "a developer in the middle": Chat(
            (says("system", n()), says("user", n()), says("assistant", n()), says("developer", n()), says("user", n()))
        ),
        "system messages twice": Chat((says("system", n()), says("system", n()), says("user", n()))),
        "the assistant first": Chat((says("assistant", n()), says("user", n()))),
        "arguments that were cut off": Chat(
            (says("user", n()), says("assistant", "", tool_calls=[_call(claude, n(), cut=True)]), _result(claude, n())),
            TOOLS,
        ),
        "two calls and their results": Chat(
            (says("system", n()), says("user", n()), both(), _result(claude, n()), _result(other, n())), TOOLS
        ),
        "foreign ids of calls": Chat(
            (says("user", n()), *turn(codex), *turn(claude), says("assistant", n()), says("user", n())), TOOLS
        ),
        "a result and a text in one message": Chat((says("user", n()), *turn(), says("user", n())), TOOLS),
        "text beside a call": Chat(
            (
                says("user", n()),
                says("assistant", n(), tool_calls=[_call(claude, n())]),
                _result(claude, n()),
                says("assistant", n()),
                says("user", n()),
            ),
            TOOLS,
        ),
        "reasoning in the history": Chat(
            (
                says("user", n()),
                says("assistant", n(), reasoning_content="So.", tool_calls=[_call(codex, n())]),
                _result(codex, n()),
                says("assistant", n(), reasoning_content="So it is."),
                says("user", n()),
            ),
            TOOLS,
        ),
        "messages of the user in a row": Chat(
            (
                says("user", n()),
                says("user", _parts(n(), n())),
                says("assistant", n()),
                says("user", n()),
                says("user", n()),
            )
        ),
        "the assistant twice in a row": Chat(
            (
                says("user", n()),
                says("assistant", n()),
                says("assistant", n(), tool_calls=[_call(codex, n())]),
                _result(codex, n()),
                says("user", n()),
            ),
            TOOLS,
        ),
        "an assistant without content": Chat((says("user", n()), says("assistant", ""), says("user", n()))),
        "results in parts, the last one of an image": Chat(
            (
                says("system", n()),
                says("user", n()),
                says("assistant", "", tool_calls=[_call(claude, n())]),
                _result(claude, _parts(n(), f"[image {n()}]")),
            ),
            TOOLS,
        ),
        "a session that was broken off and goes on": Chat(
            (
                says("system", n()),
                says("user", n()),
                says("assistant", n(), tool_calls=[_call(codex, n())]),
                _result(codex, n()),
                says("assistant", n()),
                says("system", n()),
                says("user", n()),
                *turn(claude),
                *turn(codex),
            ),
            TOOLS,
        ),
    }
