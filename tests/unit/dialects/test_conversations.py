"""What requests of each API become: `conversations.yaml` has bodies, and the conversation or the error of each.

``python -m tests.unit.dialects.test_conversations`` computes the results again. To add a case, write its `api` and
`body`. A result has what differs from a field's default.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from server.dialects.chat.parse import parse_chat
from server.dialects.messages.parse import parse_messages
from server.dialects.ollama.parse import parse_chat as parse_ollama
from server.dialects.responses.parse import parse_response
from server.errors import InvalidRequest
from tests.support.yaml_text import dumped

GOLDEN = Path(__file__).with_name("conversations.yaml")
CASES: dict[str, dict[str, Any]] = yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))
PARSERS: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]] = {
    "chat": (parse_chat, {"messages": [{"role": "user", "content": "Hi"}]}),
    "messages": (parse_messages, {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}),
    "ollama": (parse_ollama, {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}),
    "responses": (parse_response, {"input": "Hi"}),
}
"""By API the parser, and the fields of a body that a case need not give."""


def plain(value: Any) -> Any:
    """Return dataclasses as mappings of the fields that differ from their defaults."""
    if is_dataclass(value):
        found = {}
        for field in fields(value):
            made = field.default_factory() if field.default_factory is not MISSING else field.default
            if (given := getattr(value, field.name)) != made:
                found[field.name] = plain(given)
        return found
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def result(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conversation and the warnings, or the error, of a case's body."""
    parse, usual = PARSERS[case["api"]]
    try:
        request = parse(usual | case["body"])
    except InvalidRequest as error:
        return {"error": error.param, "message": error.message}
    found = plain(request.conversation) | ({"warnings": request.warnings} if request.warnings else {})
    found.pop("messages_at", None)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_body_becomes_the_conversation_of_its_case(name: str) -> None:
    assert result(CASES[name]) == CASES[name]["result"]


if __name__ == "__main__":
    made = {name: {"api": case["api"], "body": case["body"], "result": result(case)} for name, case in CASES.items()}
    GOLDEN.write_text(dumped(made), encoding="utf-8")
