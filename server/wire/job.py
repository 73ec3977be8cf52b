"""A conversation's way to the engine, and what a body says of thoughts, for all wire formats with conversations."""

from dataclasses import dataclass

from server.conversation.form import Conversation
from server.conversation.prepare import Prepared, prepare, prompt_of
from server.engine.request import Request
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.wire.common import Json
from server.wire.fields import wrong_type
from server.wire.generation import (
    NO_LOGPROBS,
    GenerationFields,
    Logprobs,
    check_alternatives,
    engine_request,
)

_SWITCH = "enable_thinking"


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine gets, and what it was made of."""

    request: Request
    prepared: Prepared


def count_tokens(conversation: Conversation, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """The reply of ``POST /v1/chat/completions/input_tokens``: the tokens of the prompt."""
    n_tokens = len(prompt_of(conversation, model).read(model, seen).tokens)
    return {"input_tokens": n_tokens, "object": "response.input_tokens"}


def prepare_job(
    conversation: Conversation,
    fields: GenerationFields,
    model: LoadedModel,
    request_id: str,
    *,
    logprobs: Logprobs = NO_LOGPROBS,
    seen: Seen = NOTHING_SEEN,
) -> Job:
    """The engine request of a conversation; blocking, for a thread. Raises `InvalidRequest`."""
    prepared = prepare(conversation, model, seen)
    request = engine_request(
        fields,
        model,
        request_id=request_id,
        prompt=prepared.tokens.tokens,
        media=prepared.tokens.spans,
        logprobs=logprobs,
        constraint=prepared.output.constraint,
        print_special=prepared.output.shown,
    )
    check_alternatives([request], model.engine.n_ctx_seq)
    return Job(request, prepared)


def asked_to_think(kwargs: Json | None, *fields: bool | None) -> bool | None:
    """Whether to think, by the first field that says, or by the template's variable. Raises `InvalidRequest`."""
    given = (kwargs or {}).get(_SWITCH)
    if given is not None and not isinstance(given, bool):
        raise wrong_type(f"chat_template_kwargs.{_SWITCH}", "a boolean", given)
    return next((each for each in (*fields, given) if each is not None), None)


def template_kwargs(given: Json | None) -> Json:
    """The template's variables, but for the one that `asked_to_think` reads."""
    return {name: value for name, value in (given or {}).items() if name != _SWITCH}
