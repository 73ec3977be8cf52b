"""A conversation's way to the engine, for all wire formats with conversations."""

from dataclasses import dataclass

from server.conversation.form import Conversation
from server.conversation.prepare import Prepared, prepare, prompt_of
from server.engine.request import Request
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.wire.common import Json
from server.wire.generation import (
    NO_LOGPROBS,
    GenerationFields,
    Logprobs,
    check_alternatives,
    engine_request,
)


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine gets, and what it was made of."""

    request: Request
    prepared: Prepared


def count_tokens(conversation: Conversation, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """The reply of ``POST /v1/chat/completions/input_tokens``: the tokens of the prompt."""
    n_tokens = prompt_of(conversation, model).count(model, seen)
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
