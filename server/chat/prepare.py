"""A conversation on its one way to an engine request: how the model writes, the prompt, what may come behind it."""

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
    """``tokens`` of the prompt, with its media, and what the output may be."""

    prompt: Prompt
    tokens: MediaPrompt
    output: Output


def prepare(conversation: Conversation, model: LoadedModel, seen: Seen) -> Prepared:
    """Render, tokenize and compile; blocking, for a thread. ``seen``: what the conversation's media are. Raises
    `InvalidRequest`."""
    chat_format = model.template.chat_format(tools=bool(conversation.tools.tools))
    prompt = render(conversation, chat_format, model)
    tokens = prompt.read(model, seen)
    if not tokens.tokens:
        at = conversation.messages_at
        raise InvalidRequest(f"{at}: the chat template renders them to an empty prompt", at)
    return Prepared(prompt, tokens, decide(conversation, chat_format, prompt, model))


def prompt_of(conversation: Conversation, model: LoadedModel) -> Prompt:
    """The prompt alone, for those who ask what it is or how long. Raises `InvalidRequest`."""
    return render(conversation, model.template.chat_format(tools=bool(conversation.tools.tools)), model)
