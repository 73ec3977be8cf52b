"""Prompts are, byte for byte, what Hugging Face's `apply_chat_template` gives: for every template of the source
distribution, and the chats of `conversations`.

Where a template can't take a chat, Hugging Face refuses it, prints Python's lists or leaves texts out; Llamapool
rewrites the chat. `rewrites` says for which templates; what comes out is what Hugging Face gives for the rewritten one,
and never what it gives for the original.
"""

import html
import json
from itertools import product
from random import Random
from typing import Any

import pytest

from server.chat.conversation import template_messages
from server.dialects.chat.parse import read_messages
from server.errors import InvalidRequest
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATE_NAMES, needs_templates
from tests.support.sampling import sample
from tests.unit.templates import hugging_face
from tests.unit.templates.conversations import CHATS, CONTINUED, Chat
from tests.unit.templates.corpus import DATES, template_of
from tests.unit.templates.random_chats import random_chat
from tests.unit.templates.rewrites import ESCAPES, TEXT_ARGUMENTS, needed, rewritten, tamed, with_preambles

pytestmark = [needs_templates, pytest.mark.slow]


def variables(chat: Chat) -> dict[str, Any]:
    """What Llamapool gives every template beside the messages; Hugging Face gets it, too."""
    given: dict[str, Any] = dict(DATES)
    given["functions"] = json.dumps([tool["function"] for tool in chat.tools or ()], indent=4)
    if "reasoning_effort" in chat.kwargs:
        given["reasoning_strength"] = chat.kwargs["reasoning_effort"]
    keep = chat.kwargs.get("preserve_reasoning")
    if keep is not None:
        given["preserve_thinking"] = keep
        given |= dict.fromkeys(("clear_thinking", "truncate_history_thinking", "drop_thinking"), not keep)
    return given


def ours(template: ChatTemplate, chat: Chat, **options: Any) -> str:
    messages = template_messages(read_messages(list(chat.messages)))
    try:
        return template.render(messages, tools=chat.tools or (), kwargs=chat.kwargs, **options).text
    except InvalidRequest as error:
        return f"!{error.message}"


def theirs(name: str, source: str, chat: Chat, **options: Any) -> str:
    options = {**variables(chat), **options}
    return with_preambles(hugging_face.prompt(source, chat, text_arguments=name in TEXT_ARGUMENTS, **options))


def check(name: str, template: ChatTemplate, chat: Chat, **options: Any) -> None:
    prompt = ours(template, chat, **options)
    expected = theirs(name, template.source, chat, **options)
    if needed(name, chat):
        assert expected != prompt, chat
        chat = rewritten(name, chat)
        expected = theirs(name, tamed(name, template.source), chat, **options)
        expected = html.unescape(expected) if name in ESCAPES else expected
    if expected.startswith("!TemplateError: "):  # the template refuses the chat, in its own words
        assert expected.removeprefix("!TemplateError: ") in prompt
        assert prompt.startswith("!messages: the chat template refused them: ")
    else:
        assert prompt == expected, (chat, options)


FLAGS = tuple(product((True, False), repeat=2))
"""Whether the prompt opens an assistant message, and whether reasoning is enabled."""


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_prompt_is_what_hugging_face_gives(name: str) -> None:
    """The gate samples pairs: a third of the chats for each template, each chat with one of the flags' four values."""
    template, number = template_of(name), TEMPLATE_NAMES.index(name)
    for at, what in sample(enumerate(CHATS), 3, number):
        for generation, thinking in sample(FLAGS, 4, at + number // 3):
            check(name, template, CHATS[what], add_generation_prompt=generation, enable_thinking=thinking)
    for at, what in sample(enumerate(CONTINUED), 2, number):
        for thinking in sample((True, False), 2, at + number // 2):
            options = {"continue_final_message": True, "add_generation_prompt": False, "enable_thinking": thinking}
            check(name, template, CONTINUED[what], **options)


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_random_chat_is_what_hugging_face_gives(name: str) -> None:
    for seed in sample(range(12), 3, TEMPLATE_NAMES.index(name)):
        random = Random(f"{name} {seed}")
        check_random(name, template_of(name), random_chat(random), enable_thinking=random.random() < 0.5)


def check_random(name: str, template: ChatTemplate, chat: Chat, **options: Any) -> None:
    """As `check`, but that the text rewritten may happen to be the same."""
    prompt = ours(template, chat, add_generation_prompt=True, **options)
    chat = rewritten(name, chat)
    expected = theirs(name, tamed(name, template.source), chat, add_generation_prompt=True, **options)
    expected = html.unescape(expected) if name in ESCAPES else expected
    assert prompt == expected or (prompt.startswith("!") and expected.startswith("!"))
