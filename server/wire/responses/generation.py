"""OpenAI's Responses API: a checked body becomes one engine request and the writer of its reply."""

from server.conversation.assembler import Assembler
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.wire.chat.read import chat_logprobs
from server.wire.common import Header, Json, random_id
from server.wire.generation import Generation
from server.wire.job import Job, count_tokens, prepare_job
from server.wire.responses.items import OutputItems
from server.wire.responses.read import (
    ReasoningOptions,
    ResponseAsked,
    TextOptions,
)
from server.wire.responses.store import ClientResponses
from server.wire.responses.write import ResponseFrame, ResponseReply, ResponseStream


def response_generation(
    asked: ResponseAsked, model: LoadedModel, stored: ClientResponses, seen: Seen = NOTHING_SEEN
) -> Generation:
    """The request and the writer of its reply; blocking, for a thread. Raises `InvalidRequest`."""
    header = Header(model.spec.id, f"resp_{random_id()}")
    logprobs = chat_logprobs(asked.fields)
    job = prepare_job(asked.conversation, asked.fields, model, header.id, logprobs=logprobs, seen=seen)
    prefilled = job.prepared.prompt.prefilled
    frame = _frame(asked, job, header, stored)
    output = OutputItems(
        Assembler(job.prepared.output.parser()), asked.tools, after_sampling=job.request.post_sampling_probs
    )
    writer = ResponseStream if asked.fields.stream else ResponseReply
    return Generation([job.request], writer(frame, output, prefill=prefilled), job.prepared.output.switch)


def response_input_tokens(asked: ResponseAsked, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> Json:
    """The reply of ``POST /v1/responses/input_tokens``."""
    return count_tokens(asked.conversation, model, seen)


def _frame(asked: ResponseAsked, job: Job, header: Header, stored: ClientResponses) -> ResponseFrame:
    # A message that is continued is a part of the output.
    before = asked.messages[:-1] if job.prepared.prompt.prefilled else asked.messages

    def keep(reply: Json, output: OutputItems) -> bool:
        messages = [*before, output.message()] if output.items else before
        return stored.keep(reply, messages) if asked.body.stored else stored.remember(reply, messages)

    kept = keep if asked.body.stored or stored.remembers else None
    return ResponseFrame(_repeated(asked, job, header), kept, stored=asked.body.stored, generates=asked.body.generates)


def _repeated(asked: ResponseAsked, job: Job, header: Header) -> Json:
    """What was asked for, as OpenAI repeats it; sampling with the values that hold."""
    body, reasoning = asked.body, asked.body.reasoning or ReasoningOptions()
    text = asked.body.text or TextOptions()
    verbosity = {"verbosity": text.verbosity} if text.verbosity else {}
    return {
        "id": header.id,
        "created_at": header.created,
        "model": header.model,
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "temperature": job.request.sampling.temperature,
        "text": {"format": text.format or {"type": "text"}, **verbosity},
        "tool_choice": body.tool_choice or "auto",
        "tools": list(asked.tools.shown),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": job.request.sampling.top_p,
        "truncation": "disabled",
    }
