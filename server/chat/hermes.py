"""Tool calls as Hermes 2 Pro and Qwen 2.5/3 write them, one behind the other::

<tool_call>
{"name": "get_weather", "arguments": {"city": "Paris"}}
</tool_call>
"""

from server.chat.calls import CallFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FORMAT = CallFormat(open=OPEN, close=CLOSE)


def speaks(source: str) -> bool:
    """Whether a template writes calls so; others put XML between the same tags (Qwen3-Coder, GLM 4.5, MiniMax M3)."""
    xml = any(mark in source for mark in ("<function=", "<arg_key>", "<invoke"))
    return OPEN in source and CLOSE in source and not xml
