"""Replace each value of a body that uses all of its format, and compare the field that is refused with `bodies.txt`.

``python -m tests.unit.dialects.test_bodies`` writes the file again; the difference shows what parsing changed.
"""

import copy
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from server.dialects.chat.parse import ControlBody, parse_chat
from server.dialects.completions.parse import parse_completion
from server.dialects.fields import Body, parse
from server.dialects.messages.parse import parse_messages
from server.dialects.native.parse import InfillBody, parse_infill, parse_native
from server.dialects.native.tokens import read_detokenize, read_tokenize
from server.dialects.ollama.parse import parse_chat as read_ollama_chat
from server.dialects.ollama.parse import parse_generate
from server.dialects.responses.parse import parse_response
from server.dialects.vectors import read_embeddings, read_rerank
from server.errors import InvalidRequest

Read = Callable[[dict[str, Any]], object]
MISSING: Any = object()
STRANGE: tuple[Any, ...] = (
    *(MISSING, None, True, 0, -1, 1.5, 1e300, 2**63, "", "a", "\x00", "\u202e\ufffe"),
    *([], [[]], [None], [1], ["a"], [{}], {}, {"a": 1}, {"type": None}, {"type": "function"}, {"type": []}),
    *({"$ref": "#"}, [{"type": "text"}], [{"type": "text", "text": 1}], {"role": "user"}),
)
"""The values, in the order of the letters in `bodies.txt`: ``a`` removes the value, ``b`` is null, and so on."""
GOLDEN = Path(__file__).parent / "bodies.txt"
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
SAMPLING = {
    **dict.fromkeys(("temperature", "top_p", "min_p", "typical_p", "xtc_probability", "xtc_threshold"), 0.5),
    **dict.fromkeys(("adaptive_target", "adaptive_decay", "dynatemp_range", "dry_multiplier", "mirostat_tau"), 0.5),
    **{"dry_base": 1.75, "repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    **dict.fromkeys(("top_k", "min_keep", "repeat_last_n", "dry_penalty_last_n", "dry_allowed_length", "seed"), 1),
    **{"mirostat": 1, "dry_sequence_breakers": ["a"], "samplers": ["top_k"], "logit_bias": {"1": 1}},
}
GENERATION = {
    **dict.fromkeys(("n", "n_cmpl", "n_predict", "max_tokens", "max_completion_tokens", "n_probs", "priority"), 1),
    **dict.fromkeys(("n_indent", "n_keep", "n_discard", "n_cache_reuse", "sse_ping_interval", "t_max_predict_ms"), 1),
    **{"id_slot": 1, "reasoning_budget_tokens": -1},
    **dict.fromkeys(
        ("stream", "grammar_lazy", "cache_prompt", "timings_per_token", "return_progress", "post_sampling_probs"), True
    ),
    **{"reasoning_budget_message": "m", "stop": ["x"], "lora": [{"id": 0, "scale": 1.0}], "model": "demo"},
}
COMPLETION = {"prompt": ["a", [1, 2]], "logprobs": 1, "stop": ["x"], "stream_options": {}, "logit_bias": [[1, 1]]}
NATIVE = {
    "prompt": ["a", {"prompt_string": "x"}, {"prompt_string": "x", "multimodal_data": ["aa"]}],
    "grammar_triggers": [{"type": 1, "value": "x"}],
    "preserved_tokens": ["x"],
    "json_schema": PARAMETERS,
    "response_fields": ["content"],
    **SAMPLING,
    **GENERATION,
}
EMBEDDINGS = {
    "input": ["a", [1, "b"], {"prompt_string": "c"}, {"content": [{"type": "text", "text": "d"}]}],
    **{"encoding_format": "float", "dimensions": 2, "embd_normalize": 2, "model": "demo"},
}
RERANK = {"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True, "model": "demo"}
TOKENIZE = {"content": ["a", 1], "add_special": True, "parse_special": True, "with_pieces": True, "model": "demo"}
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
    "embeddings": (lambda body: read_embeddings(body, native=False), EMBEDDINGS),
    "rerank": (read_rerank, RERANK),
    "tokenize": (read_tokenize, TOKENIZE),
    "detokenize": (read_detokenize, {"tokens": [1], "model": "demo"}),
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
    if value is MISSING:
        del inner[at[-1]]
    else:
        inner[at[-1]] = value
    return made


def outcome(read: Read, body: dict[str, Any]) -> str:
    """Return the field that the refusal names, or "+" if the body is accepted."""
    try:
        read(body)
    except InvalidRequest as error:
        return error.param or "-"
    return "+"


def bounds(read: Read, body: dict[str, Any], at: tuple[Any, ...], value: int) -> str:
    """Return the smallest and the largest whole number that is accepted at `at`."""
    found = []
    for end in (-(2**63), 2**64 - 1):  # what orjson reads
        inside, outside = value, end
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            accepted = outcome(read, replaced(body, at, middle)) == "+"
            inside, outside = (middle, outside) if accepted else (inside, middle)
        found.append(str(inside) if outcome(read, replaced(body, at, end)) != "+" else "any")
    return " to ".join(found)


def lines(name: str) -> Iterator[str]:
    """Yield for each place of a format's body: the place, and which values are accepted or refused in which name."""
    read, body = FORMATS[name]
    read(body)
    for at in places(body):
        outcomes: dict[str, str] = {}
        for letter, value in zip(string.ascii_letters, STRANGE, strict=False):
            try:
                named = outcome(read, replaced(body, at, value))
            except Exception as error:
                raise AssertionError(f"{at} = {value!r}") from error
            outcomes[named] = outcomes.get(named, "") + letter
        if list(outcomes) == ["+"]:
            continue  # no rule
        value = body
        for key in at:
            value = value[key]
        place = ".".join(map(str, at))
        limits = f" [{bounds(read, body, at, value)}]" if type(value) is int else ""
        yield f"{name} {place}{limits}: " + ", ".join(
            f"{letters} {'=' if named == place else named}" for named, letters in outcomes.items()
        )


@pytest.mark.parametrize("name", FORMATS)
def test_each_value_is_accepted_or_refused_in_the_name_of_its_field(name: str) -> None:
    known = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert list(lines(name)) == [line for line in known if line.startswith(f"{name} ")]


F, CHAT_F = {"name": "f", "input_schema": {}}, {"type": "function", "function": {"name": "f"}}
FLAT_F = {"type": "function", "name": "f"}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("name", "fields", "named"),
    [
        ("chat", {"tools": [CHAT_F, CHAT_F]}, "tools.1.function.name"),
        ("chat", {"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice.function.name"),
        ("chat", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ("chat", {"tools": None, "tool_choice": "required"}, "tool_choice"),
        ("messages", {"messages": [{"role": "user", "content": "Hi"}] * 16385}, "messages"),
        ("messages", {"stop_sequences": ["x"] * 65}, "stop_sequences"),
        ("messages", {"tools": [F] * 1025}, "tools"),
        ("messages", {"tools": [F, F]}, "tools.1.name"),
        ("messages", {"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ("messages", {"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ("messages", {"tools": [F, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
        ("responses", {"metadata": {"a": "x" * 513}}, "metadata.a"),
        ("responses", {"metadata": {"a" * 65: "x"}}, "metadata." + "a" * 65),
        ("responses", {"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ("responses", {"top_logprobs": 21}, "top_logprobs"),
        ("responses", {"background": True, "store": False}, "background"),
        ("responses", {"response_format": {"type": "text"}}, "text.format"),
        ("responses", {"tools": [FLAT_F, FLAT_F]}, "tools.1.name"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice.name"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "custom", "name": "g"}}, "tool_choice.name"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        ("responses", {"tools": [FLAT_F], "tool_choice": {"type": "shell"}}, "tool_choice.type"),
        ("responses", {"text": None, "grammar": 'root ::= "x"'}, "grammar"),
        ("responses", {"n": 2}, "n"),
        ("infill", {"input_extra": [{"text": ""}] * 1025}, "input_extra"),
        ("embeddings", {"input": ["a"] * 2049}, "input"),
        ("rerank", {"documents": ["a"] * 2049}, "documents"),
        ("native", {"samplers": ["top_k"] * 99}, "samplers"),
        ("native", {"reasoning_budget_message": "x" * 4097}, "reasoning_budget_message"),
        ("native", {"repeat_penalty": 1e-45}, "repeat_penalty"),
    ],
    ids=str,
)
def test_fields_that_do_not_fit_each_other_or_are_too_many_are_refused(
    name: str, fields: dict[str, Any], named: str
) -> None:
    read, body = FORMATS[name]
    assert outcome(read, body | fields) == named


GAP = {"input_prefix": "a", "input_suffix": "b"}


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (InfillBody, {"input_suffix": "b"}, '"input_prefix" is required'),
        (InfillBody, {**GAP, "prompt": 1}, '"prompt" must be a string'),
        (
            InfillBody,
            {**GAP, "input_extra": 1},
            '"input_extra" must be an array of {"filename": string, "text": string}',
        ),
        (
            InfillBody,
            {**GAP, "input_extra": [{}]},
            'extra_context chunk must contain a "text" field with a string value',
        ),
        (InfillBody, {**GAP, "lora": {}}, "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"),
        (
            InfillBody,
            {**GAP, "lora": [{"id": 0, "scale": ""}]},
            "Field 'lora.0.scale': type must be number, but is string",
        ),
        (ControlBody, {"id": "", "action": "cancel"}, "missing completion id"),
        (ControlBody, {"id": "a", "action": "stop"}, "unknown control action; known: 'reasoning_end' and 'cancel'"),
    ],
    ids=str,
)
def test_errors_of_its_own_endpoints_are_llama_servers(kind: type[Body], body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(kind, body)
    assert caught.value.message == message


if __name__ == "__main__":
    GOLDEN.write_text("".join(f"{line}\n" for name in FORMATS for line in lines(name)), encoding="utf-8")
