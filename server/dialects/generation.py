"""Fields that all generating dialects share besides sampling (limits, stop strings, streaming, cache), and the engine's
`Request`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from server.chat.conversation import Conversation, Message, ReasoningSettings, Tools
from server.chat.prepare import Output, prepare
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
from server.errors import invalid
from server.media.source import Media
from server.pool.spec import ReasoningFormat
from server.structured.constraint import Constraint
from server.structured.lazy import preserved
from server.structured.response_format import ResponseFormat

MAX_CHOICES = 128
"""Choices of one prompt; OpenAI's limit."""
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
"""Most alternatives per token of OpenAI's Responses."""
MAX_PROBS = 1000
"""Maximum alternatives per token of ``n_probs``, ``logprobs`` and ``top_logprobs``, which are the same to llama-server.
llama-server has no limit; a thousand are 60 kB per token.
"""
FEW_PROBS = 20
MOST_FORBIDDEN = 50
"""Of a constraint, for each token."""
MAX_CLOSING_CHARS = 4096
"""Maximum length of the message that ends reasoning at its budget; it counts as output."""
MAX_ALTERNATIVES = 400_000
"""Most in one reply with more than `FEW_PROBS` per token: about 40 MB."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
"""A time limit of one request, from its arrival at the engine."""


class StreamOptions(Body):
    include_usage: bool | None = None


class ServingFields(Body):
    """How a request is served, in any dialect: by which model, adapters, slot and cells, when, and how it is sent."""

    model: str | None = None
    lora: AdapterScales | None = None
    texts_of_errors: ClassVar[Mapping[str, str]] = {
        "lora": "Error: 'lora' must be an array of objects with 'id' and 'scale' fields"
    }
    id_slot: CountOrAll | None = None
    cache_prompt: bool | None = None
    cache_salt: Annotated[str, Field(min_length=1)] | None = None
    """vLLM's: cells are shared with requests of the same salt alone. Empty is a mistake there, too."""
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
"""One stop string, or a list. Empty ones stop nothing and are left out, as in llama-server."""


class GenerationFields(ServingFields, SamplingFields, ConstraintFields):
    """Fields of every wire format that generates (llama.cpp tools/server/server-schema.cpp, make_llama_cmpl_schema).

    Not among them are those that change no reply: where sampling happens, hints, accounting and routing at OpenAI.
    """

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
    n_forbidden: Annotated[Whole, Field(le=MOST_FORBIDDEN)] | None = None
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
        """Return the fields of a checked body of another dialect that have the same names, and `more`."""
        shared = {name: getattr(body, name) for name in _shared_names(type(body))}
        return _ALL_ABSENT.model_copy(update=shared | more)  # a tenth of the time that creating one takes

    @property
    def end_user(self) -> str:
        """Return the client's user id; ignored unless it is a string."""
        given = (name for name in (self.safety_identifier, self.user) if isinstance(name, str))
        return next(given, "")

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage is True

    @property
    def n_choices(self) -> int:
        """Choices per prompt."""
        return next((n for n in (self.n_cmpl, self.n) if n is not None), 1)


_ALL_ABSENT = GenerationFields.model_construct()


@cache
def _shared_names(schema: type[Body]) -> frozenset[str]:
    """Return the fields that a schema and `GenerationFields` have in common."""
    return frozenset(schema.model_fields.keys() & GenerationFields.model_fields.keys())


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Which log probabilities are computed: none, the tokens' own, or those of ``n_top`` alternatives too."""

    wanted: bool = False
    n_top: int = 0
    prompt: bool = False  # also those of the prompt's tokens

    @classmethod
    def of(cls, n_top: int | None) -> "Logprobs":
        """Return those of ``n_probs``; none if it is absent, 0 or, as in llama-server, negative."""
        return cls(bool(n_top and n_top > 0), max(n_top or 0, 0))


def refuse_thinking(fields: GenerationFields) -> None:
    """Raise `InvalidRequest` for reasoning settings outside of chats; 0 and -1 are accepted, because they have no
    effect.
    """
    for name in ("reasoning_control", "reasoning_budget_tokens", "thinking_budget_tokens"):
        if (getattr(fields, name) or 0) > 0:
            raise field_error(name, "only chat completions have reasoning that can be ended")


def token_limit(fields: GenerationFields, default: int) -> int:
    """max_tokens by llama-server's precedence of names; without one, or with -1, the model's `default` (-1 = none)."""
    given = (fields.n_predict, fields.max_completion_tokens, fields.max_tokens)
    wanted = next((limit for limit in given if limit is not None), -1)
    return default if wanted < 0 else wanted


_SAME_NAMES = (
    *("id_slot", "cache_prompt", "first_token_timeout_s", "request_timeout_s", "timings_per_token", "n_keep"),
    *("n_discard", "n_cache_reuse", "n_indent", "n_forbidden", "post_sampling_probs"),
    *("spec_n_max", "spec_n_min", "spec_p_min"),
)
"""Fields that are the engine request's of the same name; absent = its default, or the model's (`_MODEL_DEFAULTS`)."""
_MODEL_DEFAULTS = ("cache_prompt", "n_keep", "n_cache_reuse")
_OF_CONTEXT = ("client", "cache_scope", "log_id", "arrived_at", "pin_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest(ABC):
    """A body of a generating endpoint, checked as far as that needs no model."""

    options: GenerationFields  # sampling, limits and delivery
    media: Sequence[Media] = ()
    warnings: Sequence[str] = ()  # of fields without effect
    keep_alive_s: float | None = None  # how long the model stays loaded afterwards, None as configured
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
        """Whether `generation` renders no template and compiles no grammar of the body."""
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
        if not 1 <= fields.n_choices <= MAX_CHOICES:  # more than there are slots are generated in turns
            name = "n" if fields.n_cmpl is None else "n_cmpl"
            raise field_error(name, out_of_range(1, MAX_CHOICES, fields.n_choices))
        if fields.id_slot is not None and fields.id_slot >= model.engine.n_slots:
            raise field_error("id_slot", f"there are slots 0 to {model.engine.n_slots - 1}")
        shared: Json = {name: getattr(context, name) for name in _OF_CONTEXT}
        shared |= {name: getattr(model.spec.engine, name) for name in _MODEL_DEFAULTS}
        shared |= {name: value for name in _SAME_NAMES if (value := getattr(fields, name)) is not None}
        sampling = sampling_params(fields, model.spec.sampling, model.vocab, model.engine.n_ctx_seq)
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
                want_logprobs=logprobs.wanted,
                prompt_logprobs=logprobs.prompt,
                deadline_s=max(fields.t_max_predict_ms or 0, 0) / 1e3,
                return_progress=bool(fields.return_progress and fields.stream),
                print_special=print_special | preserved(tuple(fields.preserved_tokens or ()), model.vocab),
                constraint=constraint.fork() if constraint is not None and number else constraint,
                adapters=context.allowed_adapters(request_adapters(fields.lora, model, fields.model)),
                priority=context.allowed_priority(fields.priority or 0),
                cache_key=fields.prompt_cache_key or "",
                **shared,
            )
            for number, prompt in enumerate(prompts)
        ]
        check_totals(requests, model.engine.n_ctx_seq)
        return requests

    def prepare(self, context: Context, request_id: str, conversation: Conversation) -> tuple[Output, Request]:
        """Prepare one round of generation: the request's own conversation, or one that continues it.

        Raises `InvalidRequest`, `PermissionDenied`.
        """
        output, tokens = prepare(conversation, context.model, context.media)
        (request,) = self.requests(context, request_id, [tokens], output.constraint, print_special=output.shown)
        return output, request


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationRequest(ParsedRequest):
    """A request to answer a conversation, before a model renders it."""

    conversation: Conversation


def check_totals(requests: Sequence[Request], n_ctx: int) -> None:
    """Raise `InvalidRequest` if the requests of one body have too many biases or probabilities together.

    A probability takes some 80 bytes of the reply.
    """
    n_biases = sum(len(request.sampling.logit_bias) * request.n for request in requests)
    if n_biases > MAX_BATCH:
        said = f"has {n_biases} tokens for all prompts and choices; at most {MAX_BATCH}"
        raise field_error("logit_bias", said)
    n = 0
    for request in requests:
        n_prompt = len(request.prompt)
        most = request.max_tokens if request.max_tokens >= 0 else n_ctx - n_prompt
        n += request.n_probs * request.n * (most + n_prompt * request.prompt_logprobs)
    if n > MAX_ALTERNATIVES and any(r.n_probs > FEW_PROBS or (r.prompt_logprobs and r.n > 1) for r in requests):
        said = f"up to {n} probabilities in one reply, more than {MAX_ALTERNATIVES}; ask for fewer, or set n_predict"
        raise field_error("n_probs", said)


_SWITCH = "enable_thinking"


class ReasoningOption(Body):
    type: Literal["enabled", "disabled", "adaptive", "auto", "between_tools"]
    budget_tokens: CountOrAll | None = None
    display: str | None = None

    @property
    def wanted(self) -> bool | None:
        """Whether the model is to think; None where that is the template's own business."""
        if self.type == "disabled" or self.budget_tokens == 0:
            return False
        return None if self.type == "auto" else True


class ChatFields(GenerationFields):
    """Fields of chat completions and Responses about tools, reasoning and the prompt, besides the common ones."""

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
        self, messages: Sequence[Message], tools: Tools, shape: ResponseFormat | None, at: str = "messages"
    ) -> Conversation:
        """Return the conversation of `messages`, which the field `at` has. Raises `InvalidRequest`."""
        if self.grammar and tools.callable:
            raise invalid("grammar", "Cannot use custom grammar constraints with tools.")
        if self.grammar_lazy and tools.callable:
            raise invalid("grammar_lazy", "tools have triggers of their own")
        return Conversation(
            tuple(messages),
            tools,
            self._reasoning(),
            shape,
            self.lazy,
            template_kwargs=template_kwargs(self.chat_template_kwargs),
            opens=self.add_generation_prompt,
            continues=self.continue_final_message,
            reads_calls=self.parse_tool_calls is not False,
            messages_at=at,
        )

    def _reasoning(self) -> ReasoningSettings:
        """Return the reasoning settings; the first budget that is given counts. Raises `InvalidRequest`."""
        thinking = self.thinking
        budgets = (
            *(self.reasoning_budget_tokens, self.thinking_budget_tokens),
            *(self.thinking_token_budget, self.thinking_budget),
            None if thinking is None else thinking.budget_tokens,
        )
        wanted = None if thinking is None else thinking.wanted
        return ReasoningSettings(
            wanted=asked_to_think(self.chat_template_kwargs, self.enable_thinking, wanted),
            effort=self.reasoning_effort or "",
            budget=next((budget for budget in budgets if budget is not None), None),
            message=self.reasoning_budget_message,
            format=self.reasoning_format,
            switch=bool(self.reasoning_control),
        )


def asked_to_think(kwargs: Json | None, *fields: bool | None) -> bool | None:
    """Return whether to reason, by the first set field or the template's variable. Raises `InvalidRequest`."""
    given = (kwargs or {}).get(_SWITCH)
    if given is not None and not isinstance(given, bool):
        raise wrong_type(f"chat_template_kwargs.{_SWITCH}", "a boolean", given)
    return next((each for each in (*fields, given) if each is not None), None)


def template_kwargs(given: Json | None) -> Json:
    """Return the template's variables, except the one that `asked_to_think` reads."""
    return {name: value for name, value in (given or {}).items() if name != _SWITCH}
