"""The conversation and the engine requests that a body becomes, compared with `conversations.yaml` and `requests.yaml`.

To add a case, write its API and body (in `requests.yaml` also the arguments of `make_model`), and run
``python -m tests.unit.dialects.test_conversations``, which computes all results again. A result has the fields that
differ from their defaults; of an engine request, those that differ from the request for a minimal body.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from server.dialects.chat.parse import parse_chat
from server.dialects.completions.parse import parse_completion
from server.dialects.dialect import Context
from server.dialects.messages.parse import parse_messages
from server.dialects.native.parse import parse_infill, parse_native
from server.dialects.ollama.parse import parse_chat as parse_ollama
from server.dialects.responses.parse import parse_response
from server.engine.lora import Adapter
from server.errors import InvalidRequest
from tests.support.yaml_text import dumped, loaded
from tests.unit.dialects.builders import make_model

CONVERSATIONS, REQUESTS = (Path(__file__).with_name(f"{name}.yaml") for name in ("conversations", "requests"))
CASES: dict[str, dict[str, Any]] = loaded(CONVERSATIONS)
ENGINE_CASES: dict[str, list[dict[str, Any]]] = loaded(REQUESTS)
PARSERS: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]] = {
    "chat": (parse_chat, {"messages": [{"role": "user", "content": "Hi"}]}),
    "completion": (parse_completion, {"prompt": "a"}),
    "infill": (parse_infill, {"input_prefix": "a", "input_suffix": "b"}),
    "messages": (parse_messages, {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
    "native": (parse_native, {"prompt": "a"}),
    "ollama": (parse_ollama, {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}),
    "responses": (parse_response, {"input": "Hi"}),
}
"""For each API the parser and a minimal body, whose fields a case may omit."""


def plain(value: Any) -> Any:
    """Return dataclasses as mappings of the fields that differ from their defaults."""
    if is_dataclass(value):
        changed = {}
        for field in fields(value):
            default = field.default_factory() if field.default_factory is not MISSING else field.default
            if (current := getattr(value, field.name)) != default:
                changed[field.name] = plain(current)
        return changed
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def result(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conversation and the warnings, or the error, of a case's body."""
    parse, minimal = PARSERS[case["api"]]
    try:
        request = parse(minimal | case["body"])
    except InvalidRequest as error:
        return {"error": error.param, "message": error.message}
    found: dict[str, Any] = plain(request.conversation) | ({"warnings": request.warnings} if request.warnings else {})
    found.pop("messages_at", None)
    return found


@pytest.mark.parametrize("name", CASES)
def test_each_body_becomes_its_conversation_or_error(name: str) -> None:
    assert result(CASES[name]) == CASES[name]["result"]


def engine_requests(api: str, body: dict[str, Any], model: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the engine requests for `body`, with prompts as text in which special tokens are numbers in braces."""
    parse, minimal = PARSERS[api]
    adapters = [Adapter(number, f"{number}.gguf", 1.0) for number in range(model.get("adapters", 0))]
    requests = parse(minimal | body).generation(Context(make_model(**{**model, "adapters": adapters}))).requests
    texts = ["".join(chr(t) if t < 256 else f"{{{t}}}" for t in request.prompt) for request in requests]
    return [plain(request) | {"prompt": text} for request, text in zip(requests, texts, strict=True)]


def difference(value: Any, base: Any) -> Any:
    """Return the fields of `value` that differ from those of `base`."""
    if not (isinstance(value, dict) and isinstance(base, dict)):
        return value
    names = [name for name in value | base if name != "id" and value.get(name) != base.get(name)]
    return {name: difference(value.get(name), base.get(name)) for name in names}


def engine_result(api: str, case: Mapping[str, Any]) -> dict[str, Any]:
    """Return how the engine requests differ from the one for a minimal body, or the error."""
    model = case.get("model", {})
    try:
        base = engine_requests(api, {}, model)[0]
        return {"requests": [difference(each, base) for each in engine_requests(api, case["body"], model)]}
    except InvalidRequest as error:
        return {"error": error.param, "message": error.message}


@pytest.mark.parametrize("api", ENGINE_CASES)
def test_each_body_becomes_its_engine_requests_or_error(api: str) -> None:
    for case in ENGINE_CASES[api]:
        assert case == case | engine_result(api, case)


if __name__ == "__main__":
    conversations = {name: {**case, "result": result(case)} for name, case in CASES.items()}
    CONVERSATIONS.write_text(dumped(conversations), encoding="utf-8")
    requests: dict[str, list[dict[str, Any]]] = {api: [] for api in ENGINE_CASES}
    for api, cases in ENGINE_CASES.items():
        for case in cases:
            inputs = {name: value for name, value in case.items() if name in ("body", "model")}
            requests[api].append(inputs | engine_result(api, case))
    REQUESTS.write_text(dumped(requests), encoding="utf-8")
