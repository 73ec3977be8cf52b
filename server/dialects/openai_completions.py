"""OpenAI completions: the body, its prompts, and one engine request per prompt.

llama.cpp tools/server/server-common.cpp, oaicompat_completion_params_parse. Beyond it: ``echo``, and
``response_format``, which llama-server ignores here. What comes back is written by `completion_reply`.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import field_validator

from server.dialects.completion_prompt import Prompt, read_prompts, tokenize_mixed
from server.dialects.completion_reply import CompletionReply, CompletionStream
from server.dialects.constraints import output_constraint
from server.dialects.fields import parse
from server.dialects.generation import MAX_LOGPROBS, Generation, GenerationFields, Logprobs, engine_request
from server.dialects.wire import Header
from server.engine.request import Request
from server.errors import InvalidRequest
from server.pool.model import LoadedModel


class CompletionBody(GenerationFields):
    """The body of ``POST /v1/completions``."""

    prompt: Any = None
    echo: bool | None = None
    logprobs: Any = None
    best_of: Any = None
    suffix: Any = None

    @field_validator("logprobs")
    @classmethod
    def _readable_logprobs(cls, value: object) -> int | bool:
        if isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= MAX_LOGPROBS):
            return value
        raise ValueError(f"must be a boolean or an integer from 0 to {MAX_LOGPROBS}")


@dataclass(frozen=True, slots=True)
class Completion:
    """A completions body, checked, before a model tokenizes it."""

    body: CompletionBody
    prompts: list[Prompt]


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """What the engine gets, one request per prompt; ``echoes`` are the prompts' texts where they are asked for."""

    body: CompletionBody
    requests: list[Request]
    echoes: list[str]


def read_completion(given: object) -> Completion:
    """Check what needs no model. Raises `InvalidRequest`."""
    body = parse(CompletionBody, given)
    if body.best_of not in (None, 1) or body.best_of is True:
        raise InvalidRequest("best_of: Unsupported param: best_of", "best_of")
    if body.suffix:
        raise InvalidRequest("suffix: Unsupported param: suffix", "suffix")
    if body.echo and _logprobs(body).wanted:
        raise InvalidRequest("echo: can't be used with logprobs, since prompts have none here", "echo")
    return Completion(body, read_prompts(body.prompt))


def completion_generation(completion: Completion, model: LoadedModel) -> Generation:
    """The requests and the writer of their reply; blocking, for a thread. Raises `InvalidRequest`."""
    header = Header(model.spec.id)
    job = prepare_completion(completion, model, header.id)
    n, body = job.body.n_choices, job.body
    if body.stream:
        stream = CompletionStream(header, n=n, echoes=job.echoes, include_usage=body.include_usage)
        return Generation(job.requests, stream)
    return Generation(job.requests, CompletionReply(header, n=n, echoes=job.echoes))


def prepare_completion(completion: Completion, model: LoadedModel, request_id: str) -> CompletionJob:
    """Tokenize and compile; blocking, for a thread. Raises `InvalidRequest`."""
    body = completion.body
    constraint = output_constraint(body, lambda: model.grammar)
    requests, echoes = [], []
    for number, prompt in enumerate(completion.prompts):
        path = "prompt" if len(completion.prompts) == 1 else f"prompt.{number}"
        tokens = tokenize_mixed(model.vocab, prompt, path, add_special=True, parse_special=True)
        if not tokens:
            raise InvalidRequest(f"{path}: is empty, and the model begins texts with no token of its own", path)
        requests.append(
            engine_request(
                body,
                model,
                request_id=request_id if len(completion.prompts) == 1 else f"{request_id}-{number}",
                prompt=tokens,
                logprobs=_logprobs(body),
                constraint=constraint.fork() if constraint is not None and number else constraint,
            )
        )
        echoes.append(_echo(body, prompt, tokens, model))
    return CompletionJob(body, requests, echoes)


def _echo(body: CompletionBody, prompt: Prompt, tokens: list[int], model: LoadedModel) -> str:
    if not body.echo:
        return ""
    if isinstance(prompt, str):
        return prompt
    return model.vocab.detokenize(tokens).decode("utf-8", "replace")


def _logprobs(body: CompletionBody) -> Logprobs:
    """``logprobs`` counts the alternatives; true asks for one, as it does in llama-server; n_probs wins."""
    if body.n_probs is not None:
        return Logprobs(body.n_probs > 0, body.n_probs)
    if body.logprobs is None or body.logprobs is False:
        return Logprobs()
    return Logprobs(True, int(body.logprobs))
