"""Typed fields of request bodies, for editors and type checkers.

They are the fields that Llamapool reads, including llama-server's (docs/endpoints.md describes them). None has the
effect of a missing field. Pass other fields as ``**fields``, a ``dict[str, Any]``.
"""

from typing import Any, Literal, TypedDict

Object = dict[str, Any]
Objects = list[Object]
Messages = Objects
Extra = list[dict[str, str]]


class SamplingFields(TypedDict, total=False):
    """Fields of all requests that generate text: sampling, slot, cache."""

    seed: int | None
    temperature: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    typical_p: float | None
    repeat_last_n: int | None
    repeat_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: list[str] | None
    mirostat: int | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    adaptive_target: float | None
    adaptive_decay: float | None
    min_keep: int | None
    ignore_eos: bool | None
    backend_sampling: bool | None
    samplers: list[str] | str | None
    logit_bias: dict[str, float] | list[Any] | None
    cache_prompt: bool | None
    cache_salt: str | None
    prompt_cache_key: str | None
    id_slot: int | None
    sse_ping_interval: int | None  # seconds
    lora: Objects | None  # {"id", "scale"}
    priority: int | None
    first_token_timeout_s: float | None  # from arrival
    request_timeout_s: float | None


class GenerationFields(SamplingFields, total=False):
    """Fields of native completions, chat completions and completions."""

    stream_options: Object | None
    max_completion_tokens: int | None
    n_cmpl: int | None
    n_keep: int | None
    n_discard: int | None
    n_cache_reuse: int | None
    n_indent: int | None
    n_probs: int | None
    n_forbidden: int | None
    post_sampling_probs: bool | None
    stop: str | list[str] | None
    t_max_predict_ms: int | None
    timings_per_token: bool | None
    verbose: bool | None
    return_tokens: bool | None
    return_progress: bool | None
    user: Any
    safety_identifier: Any
    grammar: str | None
    grammar_lazy: bool | None
    grammar_triggers: Objects | None
    preserved_tokens: list[int | str] | None
    json_schema: Object | bool | None
    response_format: Object | None
    structured_outputs: Object | None
    guided_json: Object | bool | str | None
    guided_json_object: bool | None
    guided_regex: str | None
    guided_choice: list[str] | None
    guided_grammar: str | None
    guided_whitespace_pattern: str | None
    reasoning_control: bool | None
    reasoning_budget_tokens: int | None
    thinking_budget_tokens: int | None
    reasoning_budget_message: str | None


class CompletionFields(GenerationFields, total=False):
    """Fields of ``/completion``."""

    model: str | None
    max_tokens: int | None
    n: int | None
    logprobs: int | bool | None
    response_fields: list[str] | None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None
    reasoning_budget_start_tag: str | None
    reasoning_budget_end_tag: str | None
    reasoning_budget_end_tags: list[str] | None
    generation_prompt: str | None


class InfillFields(CompletionFields, total=False):
    """Fields of ``/infill``."""

    n_predict: int | None


class TextFields(GenerationFields, total=False):
    """Fields of ``/v1/completions``."""

    n_predict: int | None
    max_tokens: int | None
    n: int | None
    best_of: int | None
    echo: bool | None
    logprobs: int | bool | None
    suffix: str | None


class ConversationFields(GenerationFields, total=False):
    """Fields of chat completions and Responses."""

    n_predict: int | None
    max_tokens: int | None
    n: int | None
    logprobs: bool | None
    top_logprobs: int | None
    tools: Objects | None
    tool_choice: str | Object | None
    parallel_tool_calls: bool | None
    parse_tool_calls: bool | None
    chat_template_kwargs: Object | None
    add_generation_prompt: bool | None
    continue_final_message: bool | Literal["content", "reasoning_content"] | None
    enable_thinking: bool | None
    thinking: Object | None
    thinking_budget: int | None
    thinking_token_budget: int | None
    reasoning_effort: str | None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None


class ChatFields(ConversationFields, total=False):
    """Fields of ``/v1/chat/completions`` and ``/apply-template``."""

    echo: bool | None
    modalities: list[str] | None
    audio: Object | None
    web_search_options: Object | None


class MessageFields(SamplingFields, total=False):
    """Fields of ``/v1/messages``."""

    system: str | Objects | None
    stop_sequences: list[str] | None
    tools: Objects | None
    tool_choice: Object | None
    thinking: Object | None
    metadata: Object | None
    output_config: Object | None
    output_format: Object | None
    chat_template_kwargs: Object | None


class ResponseFields(ConversationFields, total=False):
    """Fields of ``/v1/responses``."""

    instructions: str | None
    previous_response_id: str | None
    conversation: str | Object | None
    store: bool | None
    background: bool | None
    generate: bool | None
    metadata: dict[str, str] | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    include: list[str] | None
    reasoning: Object | None
    text: Object | None
    prompt: Object | None
    truncation: Literal["auto", "disabled"] | None
    context_management: Objects | Object | None
