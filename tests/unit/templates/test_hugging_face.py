"""Prompts equal those of Hugging Face's `apply_chat_template`, for every template of the source distribution.

Where a template can't take a chat, Hugging Face refuses it, prints Python's lists or leaves texts out; Llamapool adapts
the messages (docs/templates.md). ``adapted_prompts.json`` has the digest of each such prompt, and `test_every_text`
tests that they show every text. Run this file to write the digests anew, and read the differences.
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
    f"{what}{' opened' * opens}{' thinking' * thinks}": (
        chat,
        {"add_generation_prompt": opens, "enable_thinking": thinks},
    )
    for (what, chat), (opens, thinks) in product(CHATS.items(), FLAGS)
}
CASES |= {
    f"continued {what}{' thinking' * thinks}": (
        chat,
        {"add_generation_prompt": False, "continue_final_message": True, "enable_thinking": thinks},
    )
    for (what, chat), thinks in product(CONTINUED.items(), (True, False))
}


class Recorded(datetime):
    """The day on which the digests were written: some templates write today's date."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """Return its noon."""
        return cls(2026, 11, 24, 12, tzinfo=tz)


def stop_the_calendar(patch: pytest.MonkeyPatch) -> None:
    """For Llamapool and for Hugging Face."""
    for module in ("server.templates.jinja", "server.templates.template", "transformers.utils.chat_template_utils"):
        patch.setattr(f"{module}.datetime", Recorded)


@pytest.fixture(autouse=True)
def _day(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_the_calendar(monkeypatch)


def variables(chat: Chat) -> dict[str, Any]:
    """Return the variables that Llamapool passes besides the messages; Hugging Face gets them, too."""
    given: dict[str, Any] = dict(DATES)
    given["functions"] = json.dumps([tool["function"] for tool in chat.tools or ()], indent=4)
    if "reasoning_effort" in chat.kwargs:
        given["reasoning_strength"] = chat.kwargs["reasoning_effort"]
    keep = chat.kwargs.get("preserve_reasoning")
    if keep is not None:
        given["preserve_thinking"] = keep
        given |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep)
    return given


def ours(template: ChatTemplate, chat: Chat, options: dict[str, Any]) -> str:
    messages = template_messages(read_messages(list(chat.messages), Omitted()))
    try:
        return template.render(messages, tools=chat.tools or (), kwargs=chat.kwargs, **options).text
    except InvalidRequest as error:
        return f"!{error.message}"


def is_theirs(name: str, prompt: str, chat: Chat, options: dict[str, Any]) -> bool:
    """Return whether Hugging Face gives the same prompt, or refuses the chat in the same words."""
    options = {**variables(chat), **options}
    text_arguments = name in hugging_face.TEXT_ARGUMENTS
    theirs = hugging_face.prompt(template_of(name).source, chat, text_arguments=text_arguments, **options)
    refused = theirs.removeprefix("!TemplateError: ")
    return prompt == theirs or (refused != theirs and prompt.startswith("!messages") and refused in prompt)


def adapted(name: str, cases: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the cases whose prompt differs from Hugging Face's, with the digest of the prompt."""
    for case in cases:
        chat, options = CASES[case]
        prompt = ours(template_of(name), chat, options)
        if not is_theirs(name, prompt, chat, options):
            yield case, sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()[:8]


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_prompt_equals_hugging_faces_or_is_adapted_as_recorded(name: str) -> None:
    cases = sample(CASES, 7, TEMPLATE_NAMES.index(name))
    recorded = json.loads(DIGESTS.read_text())[name]
    assert dict(adapted(name, cases)) == {case: recorded[case] for case in cases if case in recorded}


if __name__ == "__main__":
    stop_the_calendar(pytest.MonkeyPatch())
    found = {name: dict(adapted(name, list(CASES))) for name in TEMPLATE_NAMES}
    lines = [f"{json.dumps(name)}: {json.dumps(digests)}" for name, digests in found.items()]
    DIGESTS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
