"""llama-server's native completions: parses prompts to engine requests (tools/server/server-context.cpp,
handle_completions_impl).

`write` creates the response.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from server.chat.prompt import allowance, ended_by
from server.dialects.common import Json, random_id
from server.dialects.completions.prompt import (
    PROMPT,
    GivenPrompt,
    prompt_media,
    prompt_text,
    read_filled,
    read_prompts,
)
from server.dialects.constraints import conflict, guide
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.fields import field_error, parse
from server.dialects.generation import INNER_FIELDS, check_totals, engine_request, refuse_thinking
from server.dialects.native.schemas import NativeBody
from server.dialects.native.settings import whole_settings
from server.dialects.native.write import Finals, NativeWriter
from server.dialects.warnings import fields_of, unused_fields
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.formats.parsing.reasoning import open_reasoning
from server.media.source import NOTHING_SEEN, Seen
from server.pool.model import LoadedModel
from server.structured.constraint import Constraint
from server.structured.lazy import Lazy, compiled
from server.structured.reasoning_end import UNLIMITED
from server.structured.response_format import ResponseFormat

FIELDS = INNER_FIELDS | fields_of(NativeBody, prompt=PROMPT)
"""The fields of the body, at any depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRequest(ParsedRequest):
    """A native completion request before a model tokenizes it."""

    options: NativeBody
    prompts: list[GivenPrompt]

    def generation(self, model: LoadedModel, seen: Seen = NOTHING_SEEN, caller: Caller = NO_CALLER) -> Generation:
        """Return the requests and the writer of their reply; blocking, for a thread. Raises `InvalidRequest`."""
        return generation(self.options, lambda: tokens_of(self, model, seen), model, caller)


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
        warnings=unused_fields(given, FIELDS, ignored_format(body)),
        prompts=prompts,
    )


NATIVE = Dialect(parse_native)


def ignored_format(body: NativeBody) -> list[str]:
    """Return a warning for a ``response_format``, which llama-server ignores here, too."""
    said = "response_format is ignored: send json_schema or grammar, as to llama-server"
    return [said] if body.response_format else []


def tokens_of(completion: NativeRequest, model: LoadedModel, seen: Seen = NOTHING_SEEN) -> list[MediaPrompt]:
    """The tokens of each prompt. Raises `InvalidRequest`."""
    n = len(completion.prompts)
    return [
        read_filled(prompt, model, seen, "prompt" if n == 1 else f"prompt.{number}")
        for number, prompt in enumerate(completion.prompts)
    ]


def generation(
    body: NativeBody, tokenize: Callable[[], Sequence[MediaPrompt]], model: LoadedModel, caller: Caller
) -> Generation:
    """Return one engine request per prompt, and the writer for all of them."""
    constraint = _budgeted(
        compiled(_shape(body) or model.spec.shape, body.lazy, model.vocab, model.grammar), body, model
    )
    prompts = tokenize()
    request_id = f"cmpl-{random_id()}"
    requests = [
        engine_request(
            body,
            model,
            request_id=request_id if len(prompts) == 1 else f"{request_id}-{number}",
            prompt=prompt.tokens,
            media=prompt.spans,
            logprobs=body.wanted_probs,
            constraint=constraint.fork() if constraint is not None and number else constraint,
            caller=caller,
        )
        for number, prompt in enumerate(prompts)
    ]
    check_totals(requests, model.engine.n_ctx_seq)
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
        lora=body.lora or (),
        generation_prompt=body.generation_prompt or "",
        grammar_lazy=bool(body.grammar_lazy),
        grammar_triggers=Lazy(body.grammar_triggers or (), body.preserved_tokens or ()).shown(model.vocab),
    )


def _grammar_source(body: NativeBody) -> str:
    """GBNF as it was given; a schema in llguidance's form, as a llama-server that is built with llguidance shows it."""
    schema = body.schema_wanted
    if schema is None:
        return body.grammar or ""
    return f"%llguidance {{}}\nstart: %json {orjson.dumps(schema).decode()}"
