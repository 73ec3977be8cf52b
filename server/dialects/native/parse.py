"""llama-server's native completions and infill: parses bodies to engine requests; `write` creates the reply.

The rules are llama-server's (tools/server/server-context.cpp, handle_completions_impl).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from server.dialects.common import Json, random_id
from server.dialects.completions.prompt import PromptRequest, UntokenizedPrompt, prompt_media, read_mixed, read_prompts
from server.dialects.constraints import read_response_format
from server.dialects.dialect import Context, Dialect, Generation
from server.dialects.fields import Object, Prompt, field_error, parse
from server.dialects.generation import MAX_PROBS, GenerationFields, Logprobs, Stops, reject_reasoning_fields
from server.dialects.native.fim import Extra, extra_tokens, fim_tokens, fitting_extra, fitting_gap, require_fim
from server.dialects.native.write import NativeWriter, grammar_text
from server.dialects.warnings import unused_fields
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.errors import InvalidRequest
from server.formats.parsing.reasoning import open_reasoning
from server.pool.model import LoadedModel
from server.pool.spec import ReasoningFormat
from server.structured.constraint import Constraint
from server.structured.lazy import compiled
from server.structured.reasoning_end import UNLIMITED
from server.structured.response_format import ResponseFormat

MAX_RESPONSE_FIELDS = 256
MAX_PATH_CHARS = 256

Path = Annotated[str, Field(max_length=MAX_PATH_CHARS)]


class NativeBody(GenerationFields):
    """Fields of a native completion in addition to the common ones."""

    without_effect: ClassVar = {"response_format": ({}, "send json_schema or grammar, as to llama-server")}
    prompt: Prompt = None
    response_fields: Annotated[list[Path], Field(max_length=MAX_RESPONSE_FIELDS)] | None = None
    logprobs: bool | Annotated[int, Field(le=MAX_PROBS)] | None = None
    reasoning_format: ReasoningFormat | None = None
    response_format: Object = None
    reasoning_budget_start_tag: str | None = None
    reasoning_budget_end_tag: str | None = None
    reasoning_budget_end_tags: Stops | None = None  # limited, because each is searched at every token
    generation_prompt: str | None = None

    @property
    def requested_logprobs(self) -> Logprobs:
        """Return the setting for ``n_probs``, or for ``logprobs``, its other name in llama-server."""
        return Logprobs.of(self.n_probs if self.n_probs is not None else int(self.logprobs or 0))

    @property
    def reasoning_tags(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the start tag and the end tags of reasoning, None if the request lacks either.

        At the budget, the first end tag is forced.
        """
        single = [self.reasoning_budget_end_tag or ""]
        ends = tuple(filter(None, single if self.reasoning_budget_end_tags is None else self.reasoning_budget_end_tags))
        return (self.reasoning_budget_start_tag, ends) if self.reasoning_budget_start_tag and ends else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest(PromptRequest):
    options: NativeBody

    def generation(self, context: Context) -> Generation:
        body, model = self.options, context.model
        # As in llama-server, a grammar has precedence over a schema, and response_format has no effect.
        fields = body.model_copy(update={"json_schema": None}) if body.grammar else body
        response_format = read_response_format(fields, {}) or model.spec.shape
        constraint = compiled(response_format, body.lazy, model)
        constraint, prompts = _with_budget(constraint, body, model), self.tokens(context)
        requests = self.requests(context, f"cmpl-{random_id()}", prompts, constraint)
        settings = _settings(body, response_format, model)
        _check_size(requests, settings)
        writer = NativeWriter(requests, model, body, body.response_fields or (), **settings)
        return Generation(requests, writer)


def parse_native(given: dict[str, Any]) -> NativeRequest:
    body = parse(NativeBody, given)
    if body.reasoning_tags is None:
        reject_reasoning_fields(body)
    elif body.reasoning_control:
        raise field_error("reasoning_control", "only chat completions can be controlled")
    prompts = read_prompts(body.prompt)
    return NativeRequest(
        options=body.model_copy(update={"prompt": None}),
        media=prompt_media(prompts),
        warnings=unused_fields(given, NativeBody),
        logprobs=body.requested_logprobs,
        prompts=prompts,
    )


NATIVE = Dialect(parse_native)


def _with_budget(constraint: Constraint | None, body: NativeBody, model: LoadedModel) -> Constraint | None:
    """Return the constraint with the reasoning budget, if the request has reasoning tags.

    ``generation_prompt`` may open the reasoning. Raises `InvalidRequest` for a budget with another constraint.
    """
    tags = body.reasoning_tags
    budget = model.spec.chat.allowance(body.reasoning_budget_tokens, body.reasoning_budget_message)
    if budget.budget == UNLIMITED or tags is None:
        return constraint
    if constraint is not None:
        reason = "can't be used with what shapes the whole output; chat completions can"
        raise field_error("reasoning_budget_tokens", reason)
    opening, ends = tags
    begun = open_reasoning(body.generation_prompt or "", (opening, ends[0]))
    return budget.ended(None, model.vocab, opening, ends, begun=begun, reopens=True)


MAX_SHOWN_CHARS = 1 << 25


def _check_size(requests: Sequence[Request], settings: Json) -> None:
    """Raise `InvalidRequest` if the reply would be far longer than the body, as every choice shows all settings."""
    n_choices = sum(request.n for request in requests)
    texts = [settings["grammar"], settings["generation_prompt"], *requests[0].sampling.dry_sequence_breakers]
    n_chars = n_choices * sum(map(len, texts))
    if n_choices > 1 and n_chars > MAX_SHOWN_CHARS:
        raise InvalidRequest(
            f"generation_settings of {n_choices} choices would have {n_chars} characters, more than {MAX_SHOWN_CHARS}; "
            "shorten grammar, json_schema, generation_prompt or dry_sequence_breakers"
        )


def _settings(body: NativeBody, response_format: ResponseFormat | None, model: LoadedModel) -> Json:
    return {
        "grammar": grammar_text(response_format),
        "generation_prompt": body.generation_prompt or "",
        "grammar_lazy": bool(body.grammar_lazy),
        "grammar_triggers": body.triggers.shown(model.vocab),
    }


MAX_FILES = 1024
_FILES_ERROR = '"input_extra" must be an array of {"filename": string, "text": string}'
_TEXT_ERROR = 'extra_context chunk must contain a "text" field with a string value'


class InfillBody(NativeBody):
    """The body of ``POST /infill``."""

    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "prompt": '"prompt" must be a string',
        "input_prefix?": '"input_prefix" is required',
        "input_suffix?": '"input_suffix" is required',
        **dict.fromkeys(("input_extra", "input_extra.*"), _FILES_ERROR),
        **dict.fromkeys(("input_extra.*.text", "input_extra.*.text?"), _TEXT_ERROR),
        "input_extra.*.filename": 'extra_context chunk\'s "filename" field must be a string',
    }
    prompt: str | None = None
    input_prefix: Prompt
    input_suffix: Prompt
    input_extra: Annotated[list[Extra], Field(max_length=MAX_FILES)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillRequest(NativeRequest):
    prefix: UntokenizedPrompt
    suffix: UntokenizedPrompt
    prompt: str
    files: list[Extra]

    def tokens(self, context: Context) -> list[MediaPrompt]:
        """Return the prompt, truncated to one batch and, for additional files, to the context."""
        vocab, spec = context.model.vocab, context.model.spec
        require_fim(vocab)
        n_batch, prompt = spec.native.n_batch, vocab.tokenize(self.prompt, add_special=False, parse_special=True)
        prefix, suffix = fitting_gap(self.prefix.tokens(vocab), self.suffix.tokens(vocab), prompt, n_batch)
        files, n_ctx = extra_tokens(vocab, self.files), context.model.engine.n_ctx_seq
        extra = fitting_extra(files, n_ctx=n_ctx, n_batch=n_batch, n_predict=spec.n_predict)
        return [MediaPrompt(fim_tokens(vocab, prefix, suffix, extra, suffix_first=spec.spm_infill))]


def parse_infill(given: dict[str, Any]) -> InfillRequest:
    body = parse(InfillBody, given)
    reject_reasoning_fields(body)
    options = body.model_copy(update=dict.fromkeys(("prompt", "input_prefix", "input_suffix", "input_extra")))
    return InfillRequest(
        options=options,
        warnings=unused_fields(given, InfillBody),
        logprobs=body.requested_logprobs,
        prompts=[],
        prefix=read_mixed(body.input_prefix, "input_prefix"),
        suffix=read_mixed(body.input_suffix, "input_suffix"),
        prompt=body.prompt or "",
        files=body.input_extra or [],
    )


INFILL = Dialect(parse_infill)
