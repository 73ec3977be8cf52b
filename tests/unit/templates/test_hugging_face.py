"""Prompts equal those of transformers' `apply_chat_template`, for every template of llama.cpp's source distribution.

If a template can't take a chat, transformers raises, prints Python lists or omits texts; Llamapool adapts the messages
(docs/templates.md). ``adapted_prompts.json`` has the digest of each adapted prompt, and `test_prompt_completeness`
checks that they are complete. Run this file to update the digests, and review the differences.
"""

import json
from collections.abc import Iterator
from datetime import datetime, tzinfo
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, Self

import pytest

from server.chat.conversation import template_messages
from server.dialects.chat.parse import read_messages
from server.dialects.warnings import Omitted
from server.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATE_NAMES, needs_templates
from tests.support.sampling import sample
from tests.unit.templates import hugging_face
from tests.unit.templates.conversations import CHATS, CONTINUED, Chat
from tests.unit.templates.corpus import DATES, template_of

pytestmark = [needs_templates, pytest.mark.slow]

DIGESTS = Path(__file__).with_name("adapted_prompts.json")
FLAGS = ((True, True), (True, False), (False, True))
"""Whether the prompt opens an assistant message, and whether reasoning is enabled."""
CASES: dict[str, tuple[Chat, dict[str, Any]]] = {
    f"{name}{' opened' * opened}{' thinking' * thinking}": (
        chat,
        {"add_generation_prompt": opened, "enable_thinking": thinking},
    )
    for (name, chat), (opened, thinking) in product(CHATS.items(), FLAGS)
}
CASES |= {
    f"continued {name}{' thinking' * thinking}": (
        chat,
        {"add_generation_prompt": False, "continue_final_message": True, "enable_thinking": thinking},
    )
    for (name, chat), thinking in product(CONTINUED.items(), (True, False))
}


class FixedDate(datetime):
    """The day on which the digests were computed, because some templates render the current date."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return cls(2026, 11, 24, 12, tzinfo=tz)


def fix_date(patch: pytest.MonkeyPatch) -> None:
    for module in ("server.templates.jinja", "server.templates.template", "transformers.utils.chat_template_utils"):
        patch.setattr(f"{module}.datetime", FixedDate)


@pytest.fixture(autouse=True)
def _fixed_date(monkeypatch: pytest.MonkeyPatch) -> None:
    fix_date(monkeypatch)


def template_variables(chat: Chat) -> dict[str, Any]:
    """Return the variables besides the messages that Llamapool passes to templates, to pass them to transformers."""
    variables: dict[str, Any] = dict(DATES)
    variables["functions"] = json.dumps([tool["function"] for tool in chat.tools or ()], indent=4)
    if "reasoning_effort" in chat.kwargs:
        variables["reasoning_strength"] = chat.kwargs["reasoning_effort"]
    keep = chat.kwargs.get("preserve_reasoning")
    if keep is not None:
        variables["preserve_thinking"] = keep
        variables |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep)
    return variables


def llamapool_prompt(template: ChatTemplate, chat: Chat, options: dict[str, Any]) -> str:
    messages = template_messages(read_messages(list(chat.messages), Omitted()))
    try:
        return template.render(messages, tools=chat.tools or (), kwargs=chat.kwargs, **options).text
    except InvalidRequest as error:
        return f"!{error.message}"


def matches_transformers(name: str, prompt: str, chat: Chat, options: dict[str, Any]) -> bool:
    """Return whether transformers renders the same prompt, or raises the same template error."""
    options = {**template_variables(chat), **options}
    text_arguments = name in hugging_face.TEXT_ARGUMENTS
    expected = hugging_face.prompt(template_of(name).source, chat, text_arguments=text_arguments, **options)
    error = expected.removeprefix("!TemplateError: ")
    return prompt == expected or (error != expected and prompt.startswith("!messages") and error in prompt)


def adapted_digests(name: str, cases: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the cases whose prompt differs from that of transformers, with the digest of the prompt."""
    for case in cases:
        chat, options = CASES[case]
        prompt = llamapool_prompt(template_of(name), chat, options)
        if not matches_transformers(name, prompt, chat, options):
            yield case, sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_prompt_matches_transformers_or_the_recorded_adaptation(name: str) -> None:
    cases = sample(CASES, 7, TEMPLATE_NAMES.index(name))
    recorded = json.loads(DIGESTS.read_text())[name]
    assert dict(adapted_digests(name, cases)) == {case: recorded[case] for case in cases if case in recorded}


if __name__ == "__main__":
    fix_date(pytest.MonkeyPatch())
    by_template = {name: dict(adapted_digests(name, list(CASES))) for name in TEMPLATE_NAMES}
    lines = [f"{json.dumps(name)}: {json.dumps(digests)}" for name, digests in by_template.items()]
    DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
