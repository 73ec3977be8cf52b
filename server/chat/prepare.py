"""Converts a conversation to an engine request: chat format, prompt, constraint and parser."""

from dataclasses import dataclass

from server.chat.conversation import Conversation
from server.chat.output import Output, decide
from server.chat.prompt import Prompt, render
from server.engine.media import MediaPrompt
from server.errors import InvalidRequest
from server.media.source import Seen
from server.pool.model import LoadedModel


@dataclass(frozen=True, slots=True)
class Prepared:
    """``tokens``: the prompt with its media. The output settings are those of the reply."""

    prompt: Prompt
    tokens: MediaPrompt
    output: Output


def prepare(conversation: Conversation, model: LoadedModel, seen: Seen) -> Prepared:
    """Render, tokenize and compile. Blocks, so run it in a thread.

    ``seen``: the loaded media of the conversation. Raises `InvalidRequest`.
    """
    chat_format = model.template.chat_format(tools=bool(conversation.tools.tools))
    prompt = render(conversation, chat_format, model)
    tokens = prompt.read(model, seen)
    if not tokens.tokens:
        at = conversation.messages_at
        raise InvalidRequest(f"{at}: the chat template renders them to an empty prompt", at)
    return Prepared(prompt, tokens, decide(conversation, chat_format, prompt, model))


def prompt_of(conversation: Conversation, model: LoadedModel) -> Prompt:
    """Return the prompt alone, for endpoints that render or count it. Raises `InvalidRequest`."""
    return render(conversation, model.template.chat_format(tools=bool(conversation.tools.tools)), model)
