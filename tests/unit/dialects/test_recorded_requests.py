"""What the programs of docs/clients.md sent, read and rendered with every template: nothing is refused, no text lost.

The bodies are recorded by ``make clients`` (`tests.clients.programs.shapes`): their structure, with a placeholder for
every text.
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
from server.dialects.ollama.parse import parse_chat as read_ollama_chat
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
READERS: Mapping[str, Callable[[Any], Conversation]] = {
    "/v1/chat/completions": lambda body: parse_chat(body).conversation,
    "/v1/messages": lambda body: parse_messages(body).conversation,
    "/v1/responses": lambda body: parse_response(body).conversation,
    "/api/chat": lambda body: read_ollama_chat(body).conversation,
}
HISTORY = ("system", "instructions", "messages", "input")  # the fields of a body that hold a conversation
SYSTEM = ("system", "instructions")
THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_content", "redacted_thinking"})
PLACEHOLDER = re.compile(r"Txt\d{3,}q")


def bodies() -> dict[str, tuple[str, dict[str, Any]]]:
    """Endpoint and body, by the program and a number."""
    files = ((file, json.loads(file.read_text(encoding="utf-8"))) for file in RECORDED)
    return {f"{file.stem} {n}": (one["path"], one["body"]) for file, found in files for n, one in enumerate(found)}


def texts(value: Any, *, in_result: bool = False) -> Iterator[tuple[str, bool]]:
    """The placeholders of a conversation in order, and whether each may appear anywhere: in a tool's result, or in a
    system message, which some templates render before the last user message. Reasoning may be lost."""
    if isinstance(value, str):
        for found in PLACEHOLDER.findall(value):
            yield found, in_result
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner, in_result=in_result)
    elif isinstance(value, dict) and value.get("type") not in THOUGHTS:
        kind = value.get("type") or value.get("role") or ""
        within = in_result or kind in ("tool", "tool_result", "system", "developer") or kind.endswith("_output")
        for key, inner in value.items():
            if key not in THOUGHTS:
                yield from texts(inner, in_result=within)


def lost(body: Mapping[str, Any], prompt: str) -> list[str]:
    """Texts that `prompt` does not show, or, outside of tools' results, not behind the one before."""
    found, at = [], 0
    given = [
        {"type": "system", "text": body[field]} if field in SYSTEM else body[field]
        for field in HISTORY
        if field in body
    ]
    for text, in_result in texts(given):
        place = prompt.find(text, 0 if in_result else at)
        if place < 0:
            found.append(text)
        elif not in_result:
            at = place
    return found


def trouble(model: Any, path: str, body: dict[str, Any]) -> str:
    """Why `body` is not answered with all its texts; "" when it is."""
    try:
        missing = lost(body, as_text(render(READERS[path](body), model).parts, ""))
    except InvalidRequest as error:
        return f"400 {error.message}"
    return f"lost {missing}" if missing else ""


@pytest.mark.parametrize("name", sample([*TEMPLATE_NAMES, *BUILT_IN], 3))
def test_no_text_that_a_program_sent_is_lost(name: str) -> None:
    model = make_model()
    model.template = template_of(name)
    assert {case: why for case, (path, body) in bodies().items() if (why := trouble(model, path, body))} == {}


def test_there_are_recordings_of_every_format() -> None:
    assert {path for path, _ in bodies().values()} == set(READERS)


def test_every_field_of_theirs_is_known_or_changes_no_reply() -> None:
    known: dict[str, type[Body]] = {
        "/v1/chat/completions": chat.ChatBody,
        "/v1/messages": messages.MessagesBody,
        "/v1/responses": responses.ResponsesBody,
        "/api/chat": ollama.OllamaChatBody,
    }
    found = {case: unused_fields(body, known[path]) for case, (path, body) in bodies().items() if path in known}
    assert {case: fields for case, fields in found.items() if "unknown field" in str(fields)} == {}
