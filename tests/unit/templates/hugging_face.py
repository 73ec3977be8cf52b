"""`apply_chat_template` of transformers, called as its users do."""

import json
import os
from copy import deepcopy
from functools import cache
from typing import Any

import pytest

from tests.unit.templates.conversations import Chat

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would tell that there is no torch
transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra dev)")


TEXT_ARGUMENTS = frozenset(
    """
    HuggingFaceTB-SmolLM3-3B LFM2-8B-A1B LFM2.5-Instruct deepseek-ai-DeepSeek-R1-Distill-Llama-8B google-gemma-2-2b-it
    ibm-granite-granite-3.3-2B-Instruct llama-cpp-rwkv-world meetkai-functionary-medium-v3.2
    microsoft-Phi-3.5-mini-instruct
    """.split()  # noqa: SIM905
)
"""Templates that write the arguments of a call as they are, so these must be JSON text, or that write no calls."""


@cache
def _tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.BPE())
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")


def prompt(source: str, chat: Chat, *, text_arguments: bool = False, **options: Any) -> str:
    """Its text, or "!" and its complaint.

    The arguments of calls are objects, as its documentation has them, unless the template takes text alone.
    """
    messages = [dict(message) for message in deepcopy(chat.messages)]
    for call in (call for message in messages for call in message.get("tool_calls", [])):
        if not text_arguments:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    try:
        text: str = _tokenizer().apply_chat_template(
            messages, tools=chat.tools, chat_template=source, tokenize=False, **{**chat.kwargs, **options}
        )
    except Exception as error:  # noqa: BLE001 - whatever a template raises
        return f"!{type(error).__name__}: {error}"
    return text
