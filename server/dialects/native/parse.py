"""llama-server's native completions: parses prompts to engine requests (tools/server/server-context.cpp,
handle_completions_impl).

`write` creates the response.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import Field

from server.chat.prompt import allowance, ended_by
from server.dialects.adapters import pairs
from server.dialects.common import Json, random_id
from server.dialects.completions.prompt import (
    Mixed,
    PromptRequest,
    prompt_media,
    prompt_text,
    read_mixed,
    read_prompts,
    tokenize_mixed,
)
from server.dialects.constraints import conflict, guide
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.fields import Object, Prompt, field_error, parse
from server.dialects.generation import (
    MAX_PROBS,
    GenerationFields,
    Logprobs,
    prompt_requests,
    refuse_thinking,
)
from server.dialects.native.fim import Extra, Gap, extra_tokens, fim_tokens, fitting_extra, require_fim
from server.dialects.native.write import Finals, NativeWriter, whole_settings
from server.dialects.warnings import unused_fields
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.formats.parsing.reasoning import open_reasoning
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.structured.constraint import Constraint
from server.structured.lazy import compiled
from server.structured.reasoning_end import UNLIMITED
from server.structured.response_format import ANY_OBJECT, ResponseFormat

MAX_RESPONSE_FIELDS = 256
MAX_PATH_CHARS = 256


Path = Annotated[str, Field(max_length=MAX_PATH_CHARS)]


class NativeBody(GenerationFields):
    """Fields of a native completion in addition to the common ones. ``response_format`` has no effect."""

    prompt: Prompt = None
    response_fields: Annotated[list[Path], Field(max_length=MAX_RESPONSE_FIELDS)] | None = None
    logprobs: bool | Annotated[int, Field(le=MAX_PROBS)] | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = None
    response_format: Object = None
    reasoning_budget_start_tag: str | None = None
    reasoning_budget_end_tag: str | None = None
    reasoning_budget_end_tags: list[str] | None = None
    generation_prompt: str | None = None

    @property
    def wanted_probs(self) -> Logprobs:
        """``n_probs``, or ``logprobs``, which llama-server takes as another name of it."""
        n = self.n_probs if self.n_probs is not None else int(self.logprobs or 0)
        return Logprobs(n > 0, max(n, 0))

    @property
    def schema_wanted(self) -> object | None:
        """The JSON Schema that the output must match; a grammar counts before it, as in llama-server."""
        if self.grammar or self.json_schema is None:
            return None
        return ANY_OBJECT if self.json_schema == {} else self.json_schema

    @property
    def thinking_tags(self) -> tuple[str, tuple[str, ...]] | None:
        """Return the text that opens reasoning, and the texts that close it, the first of which is forced at the
        budget.

        None if the request has no tags, so that reasoning can't be detected.
        """
        one = [self.reasoning_budget_end_tag or ""]
        ends = tuple(filter(None, one if self.reasoning_budget_end_tags is None else self.reasoning_budget_end_tags))
        return (self.reasoning_budget_start_tag, ends) if self.reasoning_budget_start_tag and ends else None


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest(PromptRequest):
    """A native completion request before a model tokenizes it."""

    options: NativeBody

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the requests and the writer of their reply; blocking, for a thread. Raises `InvalidRequest`."""
        return generation(self.options, lambda: self.tokens(model, seen), model, caller)


def parse_native(given: dict[str, Any]) -> NativeRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    body = parse(NativeBody, given)
    if body.thinking_tags is None:
        refuse_thinking(body)
    elif body.reasoning_control:
        raise field_error("reasoning_control", "only chat completions can be controlled")
    prompts = read_prompts(body.prompt)
    return NativeRequest(
        options=body.model_copy(update={"prompt": None}),
        media=prompt_media(prompts),
        warnings=unused_fields(given, NativeBody, ignored_format(body)),
        prompts=prompts,
    )


NATIVE = Dialect(parse_native)


def ignored_format(body: NativeBody) -> list[str]:
    """Return a warning for a ``response_format``, which llama-server ignores here, too."""
    said = "response_format is ignored: send json_schema or grammar, as to llama-server"
    return [said] if body.response_format else []


def generation(
    body: NativeBody, tokenize: Callable[[], Sequence[MediaPrompt]], model: LoadedModel, caller: Caller
) -> Generation:
    """Return one engine request per prompt, and the writer for all of them."""
    constraint = _budgeted(
        compiled(_shape(body) or model.spec.shape, body.lazy, model.vocab, model.grammar), body, model
    )
    prompts = tokenize()
    request_id = f"cmpl-{random_id()}"
    requests = prompt_requests(body, model, request_id, prompts, constraint, body.wanted_probs, caller=caller)
    finals = Finals(
        model=model.spec.id,
        n=body.n_choices,
        prompts=[prompt_text(prompt.tokens, model) for prompt in prompts],
        settings=_settings(body, requests[0], model),
        response_fields=body.response_fields or (),
    )
    return Generation(requests, NativeWriter(finals, requests, return_tokens=bool(body.return_tokens)))


def _shape(body: NativeBody) -> ResponseFormat | None:
    """Return the response format; a grammar has precedence over a schema here, as in llama-server."""
    schema = body.schema_wanted
    found = guide(body)
    if found is None:
        if body.grammar:
            return ResponseFormat("gbnf", body.grammar, "grammar")
        return None if schema is None else ResponseFormat("schema", schema, "json_schema")
    for name, given in (("json_schema", body.json_schema is not None), ("grammar", bool(body.grammar))):
        if given:
            raise conflict(found.at, name)
    return found


def _budgeted(constraint: Constraint | None, body: NativeBody, model: LoadedModel) -> Constraint | None:
    """Add the reasoning budget to `constraint` if the request has reasoning tags; ``generation_prompt`` may open the
    reasoning.
    """
    tags = body.thinking_tags
    allowed = allowance(body.reasoning_budget_tokens, body.reasoning_budget_message, model.spec.chat)
    if allowed.budget == UNLIMITED or tags is None:
        return constraint
    if constraint is not None:
        reason = "can't be used with what shapes the whole output; chat completions can"
        raise field_error("reasoning_budget_tokens", reason)
    opening, ends = tags
    begun, others = open_reasoning(body.generation_prompt or "", (opening, ends[0])), ends[1:]
    return ended_by(allowed, None, model.vocab, (opening, ends[0]), begun=begun, other_ends=others, reopens=True)


def _settings(body: NativeBody, request: Request, model: LoadedModel) -> Json:
    reasoning = body.reasoning_format or model.spec.chat.reasoning_format
    return whole_settings(
        request,
        model.vocab,
        stream=bool(body.stream),
        grammar=_grammar_source(body),
        reasoning_format="deepseek" if reasoning == "auto" else reasoning,
        spec_type=model.spec.engine.asked_spec_type,
        lora=pairs(body.lora),
        generation_prompt=body.generation_prompt or "",
        grammar_lazy=bool(body.grammar_lazy),
        grammar_triggers=body.triggers.shown(model.vocab),
    )


def _grammar_source(body: NativeBody) -> str:
    """GBNF as it was given; a schema in llguidance's form, as a llama-server that is built with llguidance shows it."""
    schema = body.schema_wanted
    if schema is None:
        return body.grammar or ""
    return f"%llguidance {{}}\nstart: %json {orjson.dumps(schema).decode()}"


MAX_FILES = 1024
_WANTED_FILES = '"input_extra" must be an array of {"filename": string, "text": string}'
_WANTED_TEXT = 'extra_context chunk must contain a "text" field with a string value'


class InfillBody(NativeBody):
    """The body of ``POST /infill``."""

    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "prompt": '"prompt" must be a string',
        "input_prefix?": '"input_prefix" is required',
        "input_suffix?": '"input_suffix" is required',
        **dict.fromkeys(("input_extra", "input_extra.*"), _WANTED_FILES),
        **dict.fromkeys(("input_extra.*.text", "input_extra.*.text?"), _WANTED_TEXT),
        "input_extra.*.filename": 'extra_context chunk\'s "filename" field must be a string',
    }
    prompt: str | None = None
    input_prefix: Prompt
    input_suffix: Prompt
    input_extra: Annotated[list[Extra], Field(max_length=MAX_FILES)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InfillRequest(ParsedRequest):
    """An infill request before a model tokenizes it."""

    options: InfillBody
    prefix: Mixed
    suffix: Mixed
    prompt: str
    files: list[Extra]

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the request and the writer of its reply; blocking, for a thread.

        Raises `InvalidRequest`, and `NotSupported` for a model without the tokens for it.
        """
        require_fim(model.vocab)
        return generation(self.options, lambda: [MediaPrompt(infill_tokens(self, model))], model, caller)


def parse_infill(given: dict[str, Any]) -> InfillRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    body = parse(InfillBody, given)
    refuse_thinking(body)
    options = body.model_copy(update=dict.fromkeys(("prompt", "input_prefix", "input_suffix", "input_extra")))
    return InfillRequest(
        options=options,
        warnings=unused_fields(given, InfillBody, ignored_format(body)),
        prefix=read_mixed(body.input_prefix, "input_prefix"),
        suffix=read_mixed(body.input_suffix, "input_suffix"),
        prompt=body.prompt or "",
        files=body.input_extra or [],
    )


INFILL = Dialect(parse_infill)


def infill_tokens(infill: InfillRequest, model: LoadedModel) -> list[int]:
    """Return the prompt, cut to a batch: of a long prefix keep the end, of the suffix and the files the start and the
    end.
    """
    vocab, spec = model.vocab, model.spec
    gap = Gap(
        prefix=tokenize_mixed(vocab, infill.prefix, "input_prefix", add_special=False, parse_special=False),
        suffix=tokenize_mixed(vocab, infill.suffix, "input_suffix", add_special=False, parse_special=False),
        prompt=vocab.tokenize(infill.prompt, add_special=False, parse_special=True),
    )
    extra = fitting_extra(
        extra_tokens(vocab, infill.files),
        n_ctx=model.engine.n_ctx_seq,
        n_batch=spec.native.n_batch,
        n_predict=spec.n_predict,
    )
    return fim_tokens(vocab, gap.cut(spec.native.n_batch), extra, suffix_first=spec.spm_infill)
