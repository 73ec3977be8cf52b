"""Requests that the programs of docs/clients.md sent: no API rejects them, and no template drops a text.

``make clients`` records the bodies (`tests.clients.programs.shapes`): their structure, with a placeholder for each
text. All templates of llama.cpp render them.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from server.chat.conversation import Conversation
from server.chat.prompt import as_text, render
from server.dialects.chat import parse as chat
from server.dialects.chat.parse import parse_chat
from server.dialects.fields import Body
from server.dialects.messages import parse as messages
from server.dialects.messages.parse import parse_messages
from server.dialects.ollama import parse as ollama
from server.dialects.ollama.parse import parse_chat as parse_ollama_chat
from server.dialects.responses import parse as responses
from server.dialects.responses.parse import parse_response
from server.dialects.warnings import unused_fields
from server.errors import InvalidRequest
from tests.support.downloads import TEMPLATE_NAMES
from tests.support.sampling import sample
from tests.unit.dialects.builders import make_model
from tests.unit.templates.corpus import BUILT_IN, template_of

pytestmark = pytest.mark.slow

RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.json"))
PARSERS: Mapping[str, Callable[[Any], Conversation]] = {
    "/v1/chat/completions": lambda body: parse_chat(body).conversation,
    "/v1/messages": lambda body: parse_messages(body).conversation,
    "/v1/responses": lambda body: parse_response(body).conversation,
    "/api/chat": lambda body: parse_ollama_chat(body).conversation,
}
CONVERSATION = ("system", "instructions", "messages", "input")  # fields
SYSTEM = ("system", "instructions")
REASONING = frozenset({"thinking", "reasoning", "reasoning_content", "redacted_thinking"})
PLACEHOLDER = re.compile(r"Txt\d{3,}q")


def bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return endpoint and body of each request, by the name of the program and a number."""
    files = ((file, json.loads(file.read_text(encoding="utf-8"))) for file in RECORDED)
    return {f"{file.stem} {n}": (each["path"], each["body"]) for file, sent in files for n, each in enumerate(sent)}


def placeholders(value: Any, *, anywhere: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the placeholders of a conversation in order, and whether each may appear anywhere in the prompt.

    Templates may reorder tool results, and some render system messages before the last user message. Reasoning is
    skipped, because templates may drop it.
    """
    if isinstance(value, str):
        for placeholder in PLACEHOLDER.findall(value):
            yield placeholder, anywhere
    elif isinstance(value, list):
        for inner in value:
            yield from placeholders(inner, anywhere=anywhere)
    elif isinstance(value, dict) and value.get("type") not in REASONING:
        kind = value.get("type") or value.get("role") or ""
        anywhere |= kind in ("tool", "tool_result", "system", "developer") or kind.endswith("_output")
        for key, inner in value.items():
            if key not in REASONING:
                yield from placeholders(inner, anywhere=anywhere)


def missing(body: Mapping[str, Any], prompt: str) -> list[str]:
    """Return the placeholders that are not in `prompt`, or not after the one before."""
    lost, position = [], 0
    values = [
        {"type": "system", "text": body[field]} if field in SYSTEM else body[field]
        for field in CONVERSATION
        if field in body
    ]
    for placeholder, anywhere in placeholders(values):
        found = prompt.find(placeholder, 0 if anywhere else position)
        if found < 0:
            lost.append(placeholder)
        elif not anywhere:
            position = found
    return lost


def failure(model: Any, path: str, body: dict[str, Any]) -> str:
    """Return why the prompt of `body` is incomplete or the body is rejected; "" if neither."""
    try:
        lost = missing(body, as_text(render(PARSERS[path](body), model).parts, ""))
    except InvalidRequest as error:
        return f"400 {error.message}"
    return f"lost {lost}" if lost else ""


@pytest.mark.parametrize("name", sample([*TEMPLATE_NAMES, *BUILT_IN], 3))
def test_each_template_renders_every_text_of_recorded_requests(name: str) -> None:
    model = make_model()
    model.template = template_of(name)
    assert {case: why for case, (path, body) in bodies().items() if (why := failure(model, path, body))} == {}


def test_requests_of_every_api_are_recorded() -> None:
    assert {path for path, _ in bodies().values()} == set(PARSERS)


def test_recorded_requests_have_no_unknown_fields() -> None:
    known: dict[str, type[Body]] = {
        "/v1/chat/completions": chat.ChatBody,
        "/v1/messages": messages.MessagesBody,
        "/v1/responses": responses.ResponsesBody,
        "/api/chat": ollama.OllamaChatBody,
    }
    unused = {case: unused_fields(body, known[path]) for case, (path, body) in bodies().items()}
    assert {case: fields for case, fields in unused.items() if "unknown field" in str(fields)} == {}
