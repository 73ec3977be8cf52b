"""OpenAI completions: parses the body to one engine request per prompt (llama.cpp tools/server/server-common.cpp,
oaicompat_completion_params_parse).

Additional fields: ``echo``, ``suffix``, ``best_of``, and ``response_format``, which llama-server ignores here.
`write` creates the response.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import AfterValidator, WithJsonSchema

from server.dialects.common import Header
from server.dialects.completions.prompt import (
    PROMPT,
    GivenPrompt,
    TextWithMedia,
    prompt_media,
    read_filled,
    read_prompts,
    tokenize_mixed,
)
from server.dialects.completions.write import CompletionForm, CompletionWriter, Echo, echo
from server.dialects.constraints import read_shape
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.fields import Prompt, Whole, field_error, out_of_range, parse
from server.dialects.generation import (
    INNER_FIELDS,
    MAX_CHOICES,
    MAX_PROBS,
    GenerationFields,
    Logprobs,
    prompt_requests,
    refuse_thinking,
)
from server.dialects.native.fim import Gap, fim_tokens, require_fim
from server.dialects.verbose import verbose
from server.dialects.warnings import fields_of, unused_fields
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.errors import NotSupported
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.structured.lazy import compiled


def read_logprobs(value: object) -> int | bool:
    """Return ``logprobs``. Raises ValueError with the reason."""
    if isinstance(value, bool) or (isinstance(value, int) and 0 <= value <= MAX_PROBS):
        return value
    raise ValueError(f"must be a boolean or an integer from 0 to {MAX_PROBS}")


class CompletionBody(GenerationFields):
    """The body of ``POST /v1/completions``."""

    prompt: Prompt = None
    echo: bool | None = None
    logprobs: Annotated[Any, AfterValidator(read_logprobs), WithJsonSchema({"type": ["integer", "boolean"]})] = None
    best_of: Whole | None = None
    suffix: str | None = None

    @property
    def n_generated(self) -> int:
        """Choices that are generated per prompt, of which the reply has ``n``."""
        return max(self.best_of or 1, self.n_choices)


FIELDS = INNER_FIELDS | fields_of(CompletionBody, prompt=PROMPT)
"""The fields of the body, at any depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(ParsedRequest):
    """A completion request before a model tokenizes it."""

    options: CompletionBody
    prompts: list[GivenPrompt]

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the requests and the writer of their reply; blocking, for a thread. Raises `InvalidRequest`."""
        header = Header(model.spec.id)
        job = prepare_completion(self, model, header.id, seen, caller)
        body, n = self.options, self.options.n_generated
        form = CompletionForm(
            n=n,
            best=body.n_choices if n > body.n_choices else 0,
            logprobs=_logprobs(body).wanted,
            lists=_lists(body),
            after_sampling=bool(body.post_sampling_probs),
            include_usage=body.include_usage,
        )
        writer = CompletionWriter(header, job.echoes, form)
        return verbose(Generation(job.requests, writer), body, model, caller)


@dataclass(frozen=True, slots=True)
class CompletionJob:
    """The engine requests, one per prompt. ``echoes``: the prompts, if requested."""

    requests: list[Request]
    echoes: list[Echo]


def parse_completion(given: dict[str, Any]) -> CompletionRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    body = parse(CompletionBody, given)
    _check_best_of(body)
    refuse_thinking(body)
    if _scores_prompt(body):
        if body.suffix:
            raise field_error("echo", "can't be used with logprobs and suffix: the prompt is not what the model reads")
        if body.post_sampling_probs:
            raise field_error("echo", "can't be used with post_sampling_probs: a prompt's tokens are not sampled")
    prompts = read_prompts(body.prompt)
    options = body.model_copy(update={"prompt": None})
    return CompletionRequest(
        options=options,
        media=prompt_media(prompts),
        warnings=unused_fields(given, FIELDS),
        prompts=prompts,
    )


COMPLETIONS = Dialect(parse_completion)


def _check_best_of(body: CompletionBody) -> None:
    if body.best_of is None:
        return
    if body.best_of < body.n_choices:
        raise field_error("best_of", f"must be at least n ({body.n_choices}), got {body.best_of}")
    if body.stream and body.best_of > body.n_choices:
        raise field_error("best_of", "can't be streamed: which choices are best shows at the end")


def prepare_completion(
    completion: CompletionRequest,
    model: LoadedModel,
    request_id: str,
    seen: Seen = NOTHING_SEEN,
    caller: Caller = NO_CALLER,
) -> CompletionJob:
    """Tokenize and compile; blocking, for a thread. Raises `InvalidRequest`."""
    body = completion.options
    constraint = compiled(read_shape(body) or model.spec.shape, body.lazy, model.vocab, model.grammar)
    prompts, paths = completion.prompts, ["prompt"]
    if len(prompts) > 1:
        paths = [f"prompt.{number}" for number in range(len(prompts))]
    tokens = [_tokens(body, prompt, path, model, seen) for prompt, path in zip(prompts, paths, strict=True)]
    logprobs, n = _logprobs(body), _best_of(body)
    if n is not None:  # the choices are compared by them
        logprobs = replace(logprobs, wanted=True)
    scores = _scores_prompt(body)
    requests = prompt_requests(
        *(body, model, request_id, tokens, constraint, logprobs), n=n, prompt_logprobs=scores, caller=caller
    )
    return CompletionJob(requests, [_echo(body, *each, model) for each in zip(prompts, tokens, strict=True)])


def _tokens(body: CompletionBody, prompt: GivenPrompt, path: str, model: LoadedModel, seen: Seen) -> MediaPrompt:
    """The tokens of one prompt, with a ``suffix`` those around the gap between both."""
    vocab = model.vocab
    if body.suffix:
        if isinstance(prompt, TextWithMedia):
            raise field_error("suffix", "can't be used with media")
        prefix = tokenize_mixed(vocab, prompt, path, add_special=False, parse_special=False)
        suffix = vocab.tokenize(body.suffix, add_special=False, parse_special=False)
        try:
            require_fim(vocab)
        except NotSupported as error:
            raise field_error("suffix", error.message) from None
        return MediaPrompt(fim_tokens(vocab, Gap(prefix, suffix), suffix_first=model.spec.spm_infill))
    return read_filled(prompt, model, seen, path)


def _best_of(body: CompletionBody) -> int | None:
    """Return the number of choices for ``best_of``, None if it is not greater than ``n``. Raises `InvalidRequest`."""
    n = body.n_generated
    if n == body.n_choices:
        return None
    if n > MAX_CHOICES:
        raise field_error("best_of", out_of_range(1, MAX_CHOICES, n))
    return n


def _echo(body: CompletionBody, prompt: GivenPrompt, tokens: MediaPrompt, model: LoadedModel) -> Echo:
    if not body.echo:
        return Echo()
    marker = ""
    match prompt:
        case TextWithMedia():
            text, marker = prompt.text, model.media.marker if model.media is not None else ""
        case str():
            text = prompt
        case _:
            text = model.vocab.detokenize(tokens.tokens).decode("utf-8", "replace")
    return echo(model.vocab, text, tokens, marker) if _scores_prompt(body) else Echo(text)


def _scores_prompt(body: CompletionBody) -> bool:
    """Whether log probabilities of the prompt's tokens are shown."""
    return bool(body.echo) and _logprobs(body).wanted


def _lists(body: CompletionBody) -> bool:
    """Return whether the response has OpenAI's lists: OpenAI's ``logprobs`` is a number, llama-server's field is a
    boolean or ``n_probs``.
    """
    counted = body.logprobs is not None and not isinstance(body.logprobs, bool) and body.n_probs is None
    return (counted and not body.post_sampling_probs) or _scores_prompt(body)


def _logprobs(body: CompletionBody) -> Logprobs:
    """Return the number of alternatives: ``logprobs``; true is one, as in llama-server; n_probs has precedence."""
    if body.n_probs is not None:
        return Logprobs(body.n_top > 0, body.n_top)
    if body.logprobs is None or body.logprobs is False:
        return Logprobs()
    return Logprobs(True, int(body.logprobs))
