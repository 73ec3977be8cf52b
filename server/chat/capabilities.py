"""What a template can render, found by rendering probes (as llama.cpp does, common/jinja/caps.cpp)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.chat.jinja import FAULTS

Render = Callable[..., str]
Message = Mapping[str, Any]

_NEEDLE = "needle-7351"
_USER: Message = {"role": "user", "content": "hi"}
_TOOL = {"type": "function", "function": {"name": _NEEDLE, "description": "d", "parameters": {"type": "object"}}}


@dataclass(frozen=True, slots=True)
class Capabilities:
    """``typed_content``: content must be a list of parts. ``object_arguments``: a tool call's arguments must be an
    object, their JSON text comes out quoted or not at all."""

    system: bool
    typed_content: bool
    tools: bool
    object_arguments: bool
    thinking: bool


def probe(render: Render) -> Capabilities:
    """Try the template out; a probe that it refuses counts as not supported."""

    def says(needle: str, messages: Sequence[Message], **kwargs: Any) -> bool:
        return needle in _try(render, messages, **kwargs)

    parts = [{"type": "text", "text": _NEEDLE}]
    plain = says(_NEEDLE, [{"role": "user", "content": _NEEDLE}])
    typed = says(_NEEDLE, [{"role": "user", "content": parts}])
    raw = _try(render, [{"role": "user", "content": parts}])
    return Capabilities(
        system=says(_NEEDLE, [{"role": "system", "content": _NEEDLE}, _USER])
        or says(_NEEDLE, [{"role": "system", "content": parts}, _USER]),
        typed_content=typed and not plain and "'type'" not in raw,
        tools=says(_NEEDLE, [_USER], tools=[_TOOL]),
        object_arguments=_wants_objects(render),
        thinking=_try(render, [_USER], enable_thinking=True) != _try(render, [_USER], enable_thinking=False),
    )


def _wants_objects(render: Render) -> bool:
    def calls(arguments: Any) -> str:
        call = {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return _try(
            render,
            [
                _USER,
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "content": "r", "name": "f", "tool_call_id": "call00001"},
            ],
            tools=[_TOOL],
        )

    as_object = calls({_NEEDLE: 1})
    as_text = calls('{"' + _NEEDLE + '": 1}')
    readable = (f'"{_NEEDLE}": 1', f'"{_NEEDLE}":1', f"'{_NEEDLE}': 1")
    if any(form in as_text for form in readable[:2]):
        return False
    return any(form in as_object for form in readable) or (_NEEDLE in as_object and _NEEDLE not in as_text)


def _try(render: Render, messages: Sequence[Message], **kwargs: Any) -> str:
    try:
        return render(messages=messages, add_generation_prompt=True, **kwargs)
    except FAULTS:
        return ""
