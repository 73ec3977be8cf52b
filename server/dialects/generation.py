"""Fields that all generating dialects share besides sampling: limits, stop strings, streaming, cache options.

`ParsedRequest` converts them to the engine's `Request`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from server.chat.conversation import Conversation, Message, ReasoningSettings, Tools
from server.chat.prepare import Output, prepare
from server.chat.truncation import fits
from server.dialects.adapters import AdapterScales, request_adapters
from server.dialects.common import Json
from server.dialects.constraints import ConstraintFields
from server.dialects.dialect import Context, Generation
from server.dialects.fields import (
    Body,
    Count,
    CountOrAll,
    EndUser,
    Fraction,
    TextOrObject,
    ToolObjects,
    Whole,
    field_error,
    out_of_range,
    within,
    wrong_type,
)
from server.dialects.sampling import MAX_BATCH, SamplingFields, sampling_params
from server.engine.media import MediaPrompt
from server.engine.request import Request
from server.errors import ContextExceeded, invalid
from server.media.source import Media
from server.pool.spec import ReasoningFormat
from server.structured.constraint import Constraint
from server.structured.lazy import preserved
from server.structured.response_format import ResponseFormat

MAX_CHOICES = 128
"""Maximum number of choices of a prompt; OpenAI's limit."""
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
"""Maximum alternatives per token in OpenAI's Responses."""
MAX_PROBS = 1000
"""Maximum of ``n_probs``, ``logprobs`` and ``top_logprobs``: alternatives per token. llama-server has no limit; a
thousand take 60 kB per token.
"""
FEW_PROBS = 20
MAX_FORBIDDEN = 50
"""Maximum number of masked tokens that are listed for each token."""
MAX_CLOSING_CHARS = 4096
"""Maximum length of the message that ends reasoning at its budget; it counts as output."""
MAX_ALTERNATIVES = 400_000
"""Maximum alternatives in a reply with more than `FEW_PROBS` per token: about 40 MB."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A time limit of one request, from its arrival at the engine."""


class StreamOptions(Body):
    include_usage: bool | None = None


class ServingFields(Body):
    """Fields of any dialect that select the model, adapters, slot and cache namespace, and control delivery."""

    model: str | None = None
    lora: AdapterScales | None = None
    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "lora": "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"
    }
    id_slot: CountOrAll | None = None
    cache_prompt: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    """vLLM's: only requests with the same salt share cached prefixes. As in vLLM, it must not be empty."""
    prompt_cache_key: Annotated[str, Field(max_length=1024)] | None = None
    """OpenAI's hint that requests with the same key share prefixes."""
    priority: Annotated[Whole, AfterValidator(within(-(2**31), 2**31 - 1))] | None = None
    """vLLM's: lower is served earlier."""
    first_token_timeout_s: Seconds | None = None
    request_timeout_s: Seconds | None = None
    stream: bool | None = None
    sse_ping_interval: CountOrAll | None = None


Stops = Annotated[list[Annotated[str, Field(max_length=MAX_STOP_CHARS)]], Field(max_length=MAX_STOPS)]
Stop = Annotated[
    Stops,
    BeforeValidator(lambda given: [given] if isinstance(given, str) else given),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""One stop string, or a list. Empty strings are ignored, as in llama-server."""


class GenerationFields(ServingFields, SamplingFields, ConstraintFields):
    """Fields of every generating dialect (llama.cpp tools/server/server-schema.cpp, make_llama_cmpl_schema)."""

    stop: Stop | None = None
    n_predict: CountOrAll | None = None
    max_completion_tokens: CountOrAll | None = None
    max_tokens: CountOrAll | None = None
    n_indent: Count | None = None
    t_max_predict_ms: Annotated[Whole, AfterValidator(within(-1, 2**63 - 1))] | None = None
    stream_options: StreamOptions | None = None
    n_cmpl: Whole | None = None
    n: Whole | None = None
    n_keep: CountOrAll | None = None
    n_discard: Count | None = None
    n_cache_reuse: Count | None = None
    n_probs: Annotated[Whole, Field(le=MAX_PROBS)] | None = None
    n_forbidden: Annotated[Whole, Field(le=MAX_FORBIDDEN)] | None = None
    post_sampling_probs: bool | None = None
    timings_per_token: bool | None = None
    verbose: bool | None = None
    return_tokens: bool | None = None
    return_progress: bool | None = None
    user: EndUser = None
    safety_identifier: EndUser = None
    reasoning_control: bool | None = None
    reasoning_budget_tokens: CountOrAll | None = None
    thinking_budget_tokens: CountOrAll | None = None
    reasoning_budget_message: Annotated[str, Field(max_length=MAX_CLOSING_CHARS)] | None = None
    spec_n_max: Annotated[Count | None, Field(alias="speculative.n_max")] = None
    spec_n_min: Annotated[Count | None, Field(alias="speculative.n_min")] = None
    spec_p_min: Annotated[Fraction | None, Field(alias="speculative.p_min")] = None

    @staticmethod
    def of(body: Body, **more: Any) -> "GenerationFields":
        """Return the fields that another dialect's body has under the same names, and `more`."""
        shared = {name: getattr(body, name) for name in _shared_names(type(body))}
        return _ALL_ABSENT.model_copy(update=shared | more)  # ten times faster than a new instance

    @property
    def end_user(self) -> str:
        """Return the id of the end user, "" if there is none."""
        names = (name for name in (self.safety_identifier, self.user) if isinstance(name, str))
        return next(names, "")

    @property
    def include_usage(self) -> bool:
        """Return whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def n_choices(self) -> int:
        """Return the number of choices per prompt."""
        return next((n for n in (self.n_cmpl, self.n) if n is not None), 1)


_ALL_ABSENT = GenerationFields.model_construct()


@cache
def _shared_names(schema: type[Body]) -> frozenset[str]:
    """Return the names of the fields that `schema` and `GenerationFields` share."""
    return frozenset(schema.model_fields.keys() & GenerationFields.model_fields.keys())


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Which log probabilities are computed: none, those of generated tokens, and of ``n_top`` alternatives."""

    enabled: bool = False
    n_top: int = 0
    prompt: bool = False  # also those of the prompt's tokens

    @classmethod
    def of(cls, n_top: int | None) -> "Logprobs":
        """Return the value for ``n_probs``. Absent, 0 and, as in llama-server, negative values disable it."""
        return cls(bool(n_top and n_top > 0), max(n_top or 0, 0))


def reject_reasoning_fields(fields: GenerationFields) -> None:
    """Raise `InvalidRequest` for reasoning fields outside of chats. 0 and -1 have no effect and are accepted."""
    for name in ("reasoning_control", "reasoning_budget_tokens", "thinking_budget_tokens"):
        if (getattr(fields, name) or 0) > 0:
            raise field_error(name, "only chat completions have reasoning that can be ended")


NO_LIMIT = -2
"""A value of ``n_predict`` that parsers may set: unlimited, whatever the model's default is."""


def token_limit(fields: GenerationFields, default: int) -> int:
    """Return the token limit, by llama-server's precedence of fields; -1 = unlimited.

    Absent and -1 mean `default`.
    """
    limits = (fields.n_predict, fields.max_completion_tokens, fields.max_tokens)
    limit = next((limit for limit in limits if limit is not None), -1)
    return default if limit == -1 else max(limit, -1)


_SAME_NAMES = (
    *("id_slot", "cache_prompt", "first_token_timeout_s", "request_timeout_s", "timings_per_token", "n_keep"),
    *("n_discard", "n_cache_reuse", "n_indent", "n_forbidden", "post_sampling_probs"),
    *("spec_n_max", "spec_n_min", "spec_p_min"),
)
"""Fields with the same name in the engine's `Request`. Absent ones have its default, or the model's."""
_MODEL_DEFAULTS = ("cache_prompt", "n_keep", "n_cache_reuse")
_CONTEXT_FIELDS = ("client", "cache_scope", "log_id", "arrived_at", "pin_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest(ABC):
    """The parsed body of a generating endpoint, before the checks that need a model."""

    options: GenerationFields  # sampling, limits and delivery
    media: Sequence[Media] = ()
    warnings: Sequence[str] = ()  # about fields without effect
    keep_alive_s: float | None = None  # how long the model stays loaded afterwards, None for the configured time
    logprobs: Logprobs = Logprobs()

    @abstractmethod
    def generation(self, context: Context) -> Generation:
        """Return the engine requests and the writer of the reply. Blocking, for a worker thread.

        Raises `InvalidRequest`, `PermissionDenied`, `NotSupported`.
        """

    @property
    def model(self) -> str | None:
        return self.options.model

    @property
    def salt(self) -> str:
        """Return the body's cache salt, "" for none."""
        return self.options.cache_salt or ""

    @property
    def only_tokenizes(self) -> bool:
        """Return whether `generation` neither renders a template nor compiles a grammar of the body."""
        return False

    def requests(
        self,
        context: Context,
        request_id: str,
        prompts: Sequence[MediaPrompt],
        constraint: Constraint | None,
        *,
        print_special: frozenset[int] = frozenset(),
    ) -> list[Request]:
        """Return one engine request per prompt. Raises `InvalidRequest`, `PermissionDenied`."""
        fields, logprobs, model = self.options, self.logprobs, context.model
        if not 1 <= fields.n_choices <= MAX_CHOICES:  # choices may outnumber slots; the engine queues them
            name = "n" if fields.n_cmpl is None else "n_cmpl"
            raise field_error(name, out_of_range(1, MAX_CHOICES, fields.n_choices))
        if fields.id_slot is not None and fields.id_slot >= model.engine.n_slots:
            raise field_error("id_slot", f"there are slots 0 to {model.engine.n_slots - 1}")
        shared: Json = {name: getattr(context, name) for name in _CONTEXT_FIELDS}
        shared |= {name: getattr(model.spec.engine, name) for name in _MODEL_DEFAULTS}
        shared |= {name: value for name in _SAME_NAMES if (value := getattr(fields, name)) is not None}
        sampling = sampling_params(fields, model.spec.sampling, model.vocab, model.engine.n_ctx_seq)
        adapter = fields.model if context.names_adapter else None
        requests = [
            Request(
                id=request_id if len(prompts) == 1 else f"{request_id}-{number}",
                prompt=prompt.tokens,
                media=prompt.spans,
                sampling=sampling,
                max_tokens=token_limit(fields, model.spec.n_predict),
                stop=tuple(filter(None, fields.stop or ())) or model.spec.stop,
                n=fields.n_choices,
                n_probs=logprobs.n_top,
                want_logprobs=logprobs.enabled,
                prompt_logprobs=logprobs.prompt,
                deadline_s=max(fields.t_max_predict_ms or 0, 0) / 1e3,
                return_progress=bool(fields.return_progress and fields.stream),
                print_special=print_special | preserved(tuple(fields.preserved_tokens or ()), model.vocab),
                constraint=constraint.fork() if constraint is not None and number else constraint,
                adapters=context.allowed_adapters(request_adapters(fields.lora, model, adapter)),
                priority=context.allowed_priority(fields.priority or 0),
                cache_key=fields.prompt_cache_key or "",
                **shared,
            )
            for number, prompt in enumerate(prompts)
        ]
        check_totals(requests, model.engine.n_ctx_seq)
        return requests

    def prepare(self, context: Context, request_id: str, conversation: Conversation) -> tuple[Output, Request]:
        """Prepare one round of generation for the request's conversation, or for one that continues it.

        Raises `InvalidRequest`, `PermissionDenied`.
        """
        output, tokens = prepare(conversation, context.model, context.media)
        (request,) = self.requests(context, request_id, [tokens], output.constraint, print_special=output.shown)
        return output, request

    def prepare_fitting(
        self, context: Context, request_id: str, conversation: Conversation, max_tokens: int | None
    ) -> tuple[Output, Request] | None:
        """Do what `prepare` does, or return None if the prompt leaves no room for a reply of `max_tokens`."""
        try:
            output, request = ParsedRequest.prepare(self, context, request_id, conversation)
        except ContextExceeded:
            return None
        return (output, request) if fits(len(request.prompt), context.model.engine.n_ctx_seq, max_tokens) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest(ParsedRequest):
    """A parsed request with a conversation."""

    conversation: Conversation


def check_totals(requests: Sequence[Request], n_ctx: int) -> None:
    """Raise `InvalidRequest` if the requests of one body have too many biases or probabilities in all.

    A probability takes about 80 bytes of the reply.
    """
    n_biases = sum(len(request.sampling.logit_bias) * request.n for request in requests)
    if n_biases > MAX_BATCH:
        reason = f"has {n_biases} tokens for all prompts and choices; at most {MAX_BATCH}"
        raise field_error("logit_bias", reason)
    n = 0
    for request in requests:
        n_prompt = len(request.prompt)
        n_generated = request.max_tokens if request.max_tokens >= 0 else n_ctx - n_prompt
        n += request.n_probs * request.n * (n_generated + n_prompt * request.prompt_logprobs)
    if n > MAX_ALTERNATIVES and any(r.n_probs > FEW_PROBS or (r.prompt_logprobs and r.n > 1) for r in requests):
        reason = f"up to {n} probabilities in one reply, more than {MAX_ALTERNATIVES}; ask for fewer, or set n_predict"
        raise field_error("n_probs", reason)


_ENABLE_THINKING = "enable_thinking"


class ReasoningOption(Body):
    type: Literal["enabled", "disabled", "adaptive", "auto", "between_tools"]
    budget_tokens: CountOrAll | None = None
    display: str | None = None

    @property
    def enabled(self) -> bool | None:
        """Return whether the model should reason; None for the template's default."""
        if self.type == "disabled" or self.budget_tokens == 0:
            return False
        return None if self.type == "auto" else True


class ChatFields(GenerationFields):
    """Additional fields of Chat Completions and Responses: tools, reasoning and the prompt."""

    tools: ToolObjects = None
    tool_choice: TextOrObject = None
    parallel_tool_calls: bool | None = None
    parse_tool_calls: bool | None = None
    logprobs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None = None
    thinking_token_budget: CountOrAll | None = None
    thinking_budget: CountOrAll | None = None
    thinking: ReasoningOption | None = None
    reasoning_format: ReasoningFormat | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def as_conversation(
        self, messages: Sequence[Message], tools: Tools, response_format: ResponseFormat | None, at: str = "messages"
    ) -> Conversation:
        """Return the conversation. `at`: the field that contains `messages`. Raises `InvalidRequest`."""
        if self.grammar and tools.callable:
            raise invalid("grammar", "Cannot use custom grammar constraints with tools.")
        if self.grammar_lazy and tools.callable:
            raise invalid("grammar_lazy", "tools have triggers of their own")
        return Conversation(
            tuple(messages),
            tools,
            self._reasoning(),
            response_format,
            self.lazy,
            template_kwargs=template_kwargs(self.chat_template_kwargs),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            parse_tool_calls=self.parse_tool_calls is not False,
            messages_at=at,
        )

    def _reasoning(self) -> ReasoningSettings:
        """Return the reasoning settings, with the first budget that is set. Raises `InvalidRequest`."""
        thinking = self.thinking
        budgets = (
            *(self.reasoning_budget_tokens, self.thinking_budget_tokens),
            *(self.thinking_token_budget, self.thinking_budget),
            None if thinking is None else thinking.budget_tokens,
        )
        enabled = None if thinking is None else thinking.enabled
        return ReasoningSettings(
            enabled=reasoning_enabled(self.chat_template_kwargs, self.enable_thinking, enabled),
            effort=self.reasoning_effort or "",
            budget=next((budget for budget in budgets if budget is not None), None),
            message=self.reasoning_budget_message,
            format=self.reasoning_format,
            switch=bool(self.reasoning_control),
        )


def reasoning_enabled(kwargs: Json | None, *fields: bool | None) -> bool | None:
    """Return the first of `fields` that is set, or ``enable_thinking`` in `kwargs`. Raises `InvalidRequest`."""
    variable = (kwargs or {}).get(_ENABLE_THINKING)
    if variable is not None and not isinstance(variable, bool):
        raise wrong_type(f"chat_template_kwargs.{_ENABLE_THINKING}", "a boolean", variable)
    return next((each for each in (*fields, variable) if each is not None), None)


def template_kwargs(given: Json | None) -> Json:
    """Return the template's variables without ``enable_thinking``, which `reasoning_enabled` reads."""
    return {name: value for name, value in (given or {}).items() if name != _ENABLE_THINKING}
