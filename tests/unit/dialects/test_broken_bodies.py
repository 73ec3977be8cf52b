"""Every value of a body that uses all of its format, in turn replaced by what it may not be: nothing but a refusal."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.completions.parse import parse_completion
from server.dialects.messages.parse import parse_messages
from server.dialects.native.infill import parse_infill
from server.dialects.native.parse import parse_native
from server.dialects.ollama.parse import parse_chat as read_ollama_chat
from server.dialects.ollama.parse import parse_generate
from server.dialects.responses.parse import parse_response
from server.errors import InvalidRequest

Read = Callable[[dict[str, Any]], object]
STRANGE: tuple[Any, ...] = (
    *(None, True, 0, -1, 1.5, 1e300, 2**63, "", "a", "\x00", "\u202e\ufffe"),
    *([], [[]], [None], [1], ["a"], [{}], {}, {"a": 1}, {"type": None}, {"type": "function"}, {"type": []}),
    *({"$ref": "#"}, [{"type": "text"}], [{"type": "text", "text": 1}], {"role": "user"}),
)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "string"}}}
GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "a+"}
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "x"},
                {"type": "image_url", "image_url": {"url": "u"}},
                {"type": "input_image", "image_url": "u"},
                {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
                {"type": "video_url", "video_url": {"url": "u"}},
                {"type": "file", "file": {"file_data": "data:image/png;base64,AA==", "filename": "f.png"}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": [{"type": "text", "text": "r"}],
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
                {"id": "c2", "type": "custom", "custom": {"name": "p", "input": "aa"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "r", "name": "f"},
        {"role": "function", "name": "f", "content": "r"},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "user", "content": "x"},
    ],
    "tools": [
        {"type": "function", "function": {"name": "f", "parameters": PARAMETERS, "strict": True}},
        {"type": "custom", "custom": {"name": "p", "format": {"type": "grammar", "grammar": GRAMMAR}}},
        {"type": "web_search", "filters": {}},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    },
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": PARAMETERS, "strict": True}},
    "chat_template_kwargs": {"enable_thinking": True},
    "thinking": {"type": "enabled", "budget_tokens": 9},
    "stop": ["x"],
    "logit_bias": {"1": 1},
    "samplers": ["top_k"],
    "lora": [{"id": 0, "scale": 1.0}],
    "stream_options": {"include_usage": True},
    "reasoning_effort": "low",
    "max_tokens": 1,
    "n": 1,
}
MESSAGES = {
    "max_tokens": 1,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "b"}},
                {"type": "server_tool_use", "id": "t2", "name": "web_search", "input": {"query": "q"}},
                {"type": "web_search_tool_result", "tool_use_id": "t2", "content": [{"type": "x", "title": "t"}]},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "is_error": False,
                    "content": [
                        {"type": "text", "text": "r"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}},
                        {"type": "document", "title": "d", "source": {"type": "text", "data": "t"}},
                        {"type": "tool_reference", "tool_name": "f"},
                    ],
                },
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "x"}]}},
                {"type": "document", "source": {"type": "base64", "media_type": "image/png", "data": "aa"}},
                {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}},
            ],
        },
    ],
    "tools": [
        {"name": "f", "input_schema": PARAMETERS, "description": "d", "defer_loading": False},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "metadata": {"user_id": "u"},
    "stop_sequences": ["z"],
    "context_management": {"edits": [{"type": "clear_thinking_20251015"}]},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": PARAMETERS}},
}
RESPONSES = {
    "max_output_tokens": 1,
    "instructions": "i",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {
            "type": "reasoning",
            "id": "r",
            "summary": [{"type": "summary_text", "text": "s"}],
            "content": [{"type": "reasoning_text", "text": "y"}],
            "encrypted_content": None,
        },
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "o"}]},
        {"type": "function_call_output", "call_id": "c", "output": {"type": "input_image", "image_url": "u"}},
        {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "q"},
        {"type": "custom_tool_call_output", "call_id": "d", "output": "r"},
        {"type": "mcp_call", "id": "m", "name": "x", "arguments": "{}", "output": "o"},
        {"type": "code_interpreter_call", "id": "z", "code": "c", "outputs": [{"type": "logs", "logs": "l"}]},
        {"type": "local_shell_call", "call_id": "e", "action": {"command": ["ls"]}},
        {"type": "shell_call_output", "call_id": "e", "output": [{"stdout": "x", "stderr": ""}]},
        {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file", "path": "p"}},
        {"type": "apply_patch_call_output", "call_id": "p", "status": "completed", "output": "o"},
        {"type": "computer_call", "call_id": "y", "actions": [{"type": "wait"}]},
        {"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {"query": "q"}},
        {"type": "tool_search_output", "call_id": "s", "tools": [{"type": "function", "name": "l"}]},
        {"type": "additional_tools", "tools": [{"type": "function", "name": "k"}]},
        {"type": "agent_message", "content": "hi"},
        {"type": "input_file", "file_data": "data:text/plain;base64,aGk=", "filename": "f"},
        {"role": "user", "content": [{"type": "input_file", "file_data": "data:text/plain;base64,aGk="}]},
        {"role": "user", "content": [{"type": "input_file", "file_url": "https://a.example/b.png", "filename": "b"}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "d", "format": "mp3"}}]},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": PARAMETERS, "strict": True},
        {"type": "custom", "name": "g", "format": GRAMMAR},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "h", "defer_loading": True}]},
        {"type": "tool_search", "execution": "client", "description": "d", "parameters": PARAMETERS},
        {"type": "shell", "environment": {"type": "local", "skills": [{"name": "s"}]}},
    ],
    "tool_choice": {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "function", "name": "f"}, {"type": "shell"}],
    },
    "text": {"format": {"type": "json_schema", "name": "n", "schema": PARAMETERS}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "include": ["message.output_text.logprobs"],
    "metadata": {"a": "b"},
    "context_management": [{"type": "compaction"}],
}
OLLAMA = {
    "messages": [
        {"role": "user", "content": "x", "images": ["aa"]},
        {
            "role": "assistant",
            "content": "",
            "thinking": "t",
            "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}],
    "options": {"num_predict": 1, "stop": ["x"], "temperature": 0.5},
    "format": PARAMETERS,
    "think": "low",
    "keep_alive": "5m",
}
GENERATE = {"prompt": "x", "system": "s", "context": [1], "suffix": "b", "options": {"top_k": 1}}
COMPLETION = {"prompt": ["a", [1, 2]], "logprobs": 1, "stop": ["x"], "stream_options": {}, "logit_bias": [[1, 1]]}
NATIVE = {
    "prompt": ["a", {"prompt_string": "x"}, {"prompt_string": "x", "multimodal_data": ["aa"]}],
    "image_data": [{"data": "aa", "id": 1}],
    "grammar_triggers": [{"type": 1, "value": "x"}],
    "preserved_tokens": ["x"],
    "json_schema": PARAMETERS,
    "response_fields": ["content"],
}
INFILL = {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "a", "filename": "b"}], "prompt": "x"}
FORMATS: dict[str, tuple[Read, dict[str, Any]]] = {
    "chat": (parse_chat, CHAT),
    "messages": (parse_messages, MESSAGES),
    "responses": (parse_response, RESPONSES),
    "ollama": (read_ollama_chat, OLLAMA),
    "generate": (parse_generate, GENERATE),
    "completion": (parse_completion, COMPLETION),
    "native": (parse_native, NATIVE),
    "infill": (parse_infill, INFILL),
}


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*at, key))


def replaced(body: dict[str, Any], at: tuple[Any, ...], value: Any) -> dict[str, Any]:
    made = copy.deepcopy(body)
    inner: Any = made
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return made


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_stands_in_a_body_it_is_read_or_refused(name: str) -> None:
    read, body = FORMATS[name]
    read(body)
    for at in places(body):
        for value in STRANGE:
            try:
                read(replaced(body, at, value))
            except InvalidRequest:
                continue
            except Exception as error:
                raise AssertionError(f"{at} = {value!r}") from error
