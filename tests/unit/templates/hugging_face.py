"""Prompts of transformers' `apply_chat_template`, to compare with."""

import json
import os
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from tests.unit.templates.conversations import Chat

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # no warning about missing torch
transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")


TEXT_ARGUMENTS = frozenset(
    """
    HuggingFaceTB-SmolLM3-3B LFM2-8B-A1B LFM2.5-Instruct deepseek-ai-DeepSeek-R1-Distill-Llama-8B google-gemma-2-2b-it
    ibm-granite-granite-3.3-2B-Instruct llama-cpp-rwkv-world meetkai-functionary-medium-v3.2
    microsoft-Phi-3.5-mini-instruct
    """.split()  # noqa: SIM905
)
"""Templates that need arguments as JSON text because they copy them, or that render no calls."""


@cache
def _tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")


def prompt(source: str, chat: Chat, *, text_arguments: bool = False, **options: Any) -> str:
    """Return the prompt, or "!" and the error.

    Arguments of calls are passed as objects, as transformers documents, or with `text_arguments` as text.
    """
    messages = [dict(message) for message in deepcopy(chat.messages)]
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        if not text_arguments:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    try:
        text: str = _tokenizer().apply_chat_template(
            messages, tools=chat.tools, chat_template=source, tokenize=False, **{**chat.kwargs, **options}
        )
    except Exception as error:  # noqa: BLE001 - a template may raise anything
        return f"!{type(error).__name__}: {error}"
    return text
