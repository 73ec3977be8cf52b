"""Reply types for `/openapi.json` only: writers produce bytes. A test compares them with real replies. Optional keys
are `NotRequired`; more keys may be added.
"""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # of Python 3.12, which pydantic needs

Json = dict[str, Any]


class ErrorDetail(TypedDict):
    code: int
    message: str
    type: str
    param: NotRequired[str]
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]


class Error(TypedDict):
    """llama-server's: of every endpoint that no other API has."""

    error: ErrorDetail


class OpenAIErrorDetail(TypedDict):
    code: str
    message: str
    type: str
    param: str | None
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]


class OpenAIError(TypedDict):
    """OpenAI's, with llama-server's types."""

    error: OpenAIErrorDetail


class CohereError(TypedDict):
    message: str


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str


class AnthropicError(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail


class OllamaError(TypedDict):
    error: str


class Timings(TypedDict):
    """Tokens and milliseconds."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


class UsageRow(TypedDict):
    """``day``: in UTC. ``key``: the name of the API key, "" for none."""

    day: str
    key: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


class UsageBudget(TypedDict):
    """Tokens of prompts and completions. ``limit``: null = unlimited."""

    used: int
    limit: int | None


class UsageReport(TypedDict):
    """``budget``: of the key that asks, by ``day`` and ``month``."""

    object: Literal["list"]
    data: list[UsageRow]
    budget: NotRequired[dict[str, UsageBudget]]


class TranscriptUsage(TypedDict):
    type: Literal["tokens"]
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: "CachedTokens"
    input_token_details: dict[str, int]


class Transcript(TypedDict):
    """Of ``verbose_json`` it has segments, too; other formats are text."""

    type: Literal["transcript.text.done"]
    text: str
    usage: TranscriptUsage


class TranscriptEvent(TypedDict):
    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: NotRequired[str]
    text: NotRequired[str]
    usage: NotRequired[TranscriptUsage]


class CachedTokens(TypedDict):
    cached_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopLogprob(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class Logprobs(TypedDict):
    content: list[TokenLogprob]


class CalledFunction(TypedDict):
    name: str
    arguments: str


class ToolCall(TypedDict):
    id: str
    type: Literal["function", "custom"]
    function: NotRequired[CalledFunction]


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    function_call: NotRequired[CalledFunction]


class ChatChoice(TypedDict):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    message: ChatMessage
    logprobs: NotRequired[Logprobs | None]


class ChatCompletion(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: Timings


class ChunkChoice(TypedDict):
    index: int
    delta: Json
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"] | None
    logprobs: NotRequired[Logprobs | None]


class ChatCompletionChunk(TypedDict):
    """One event; ``data: [DONE]`` is the last."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]
    prompt_progress: NotRequired[Json]


class CompletionChoice(TypedDict):
    index: int
    text: str
    finish_reason: Literal["stop", "length"] | None
    logprobs: Json | None


class Completion(TypedDict):
    """Whole, or one event of a stream, whose last is ``data: [DONE]``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage]
    timings: NotRequired[Timings]


class NativeCompletion(TypedDict):
    """Whole, or the last event of a stream."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: Json
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: Literal["none", "eos", "limit", "word"]
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: NotRequired[list[TokenLogprob]]


class NativeChunk(TypedDict):
    """An event of a stream before the last."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int


class AnthropicUsage(TypedDict):
    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: NotRequired[int]


class AnthropicBlock(TypedDict):
    type: Literal["text", "thinking", "tool_use"]
    text: NotRequired[str]
    thinking: NotRequired[str]
    signature: NotRequired[str]
    id: NotRequired[str]
    name: NotRequired[str]
    input: NotRequired[Json]


class AnthropicMessage(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnthropicBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: AnthropicUsage


class AnthropicEvent(TypedDict):
    """An event's data; its type is the event's name, too."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]
    message: NotRequired[AnthropicMessage]
    index: NotRequired[int]
    content_block: NotRequired[AnthropicBlock]
    delta: NotRequired[Json]
    usage: NotRequired[Json]
    error: NotRequired[AnthropicErrorDetail]


class InputTokens(TypedDict):
    input_tokens: int
    object: NotRequired[str]


class OpenAIResponse(TypedDict):
    """OpenAI's ``response``."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    output: list[Json]
    usage: Json | None
    error: Json | None
    incomplete_details: Json | None
    instructions: Any
    previous_response_id: str | None
    metadata: Json


class ResponseEvent(TypedDict):
    """An event's data; its type is the event's name, too."""

    type: str
    sequence_number: int
    response: NotRequired[Json]
    item: NotRequired[Json]
    delta: NotRequired[str]


class Deleted(TypedDict):
    id: str
    object: str
    deleted: bool


class DeletedBatch(TypedDict):
    id: str
    type: Literal["message_batch_deleted"]


class ObjectList(TypedDict):
    """One page of a list."""

    object: Literal["list"]
    data: list[Json]
    first_id: str | None
    last_id: str | None
    has_more: bool


class CompactedResponse(TypedDict):
    """A conversation as one opaque item."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Json]
    usage: Json


class Conversation(TypedDict):
    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class File(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]


class AnthropicFile(TypedDict):
    """A file as Anthropic's API describes it, for clients that send ``anthropic-version``."""

    type: Literal["file"]
    id: str
    filename: str
    mime_type: str
    size_bytes: int
    created_at: str
    expires_at: str | None
    downloadable: bool


class Batch(TypedDict):
    """OpenAI's ``batch``."""

    id: str
    object: Literal["batch"]
    endpoint: str
    input_file_id: str
    status: Literal["failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
    output_file_id: str | None
    error_file_id: str | None
    request_counts: dict[str, int]


class MessageBatch(TypedDict):
    """Anthropic's ``message_batch``."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: dict[str, int]
    results_url: str | None


class MessageBatches(TypedDict):
    data: list[Json]
    has_more: bool
    first_id: str | None
    last_id: str | None


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    encoding_format: NotRequired[Literal["base64"]]


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Embeddings(TypedDict):
    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class NativeEmbedding(TypedDict):
    """One text's vector, or with pooling none one for each token."""

    index: int
    embedding: list[list[float]]


class RerankResult(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[Json]


class Reranked(TypedDict):
    object: Literal["list"]
    model: str
    results: list[RerankResult]
    usage: EmbeddingUsage


class CohereBilled(TypedDict):
    search_units: int


class CohereMeta(TypedDict):
    api_version: dict[str, str]
    billed_units: CohereBilled
    tokens: dict[str, int]


class CohereReranked(TypedDict):
    """Cohere's shape; its scores are between 0 and 1."""

    id: str
    results: list[RerankResult]
    meta: CohereMeta


class TeiRank(TypedDict):
    """Text Embeddings Inference's shape, for a body with ``texts``."""

    index: int
    score: float
    text: NotRequired[str]


class TokenPiece(TypedDict):
    id: int
    piece: str | list[int]


class Tokens(TypedDict):
    tokens: list[int] | list[TokenPiece]


class Predictions(TypedDict):
    predictions: list[Any]


class TokenizerInfo(TypedDict):
    tokenizer_class: str
    bos_token: str | None
    eos_token: str | None
    chat_template: str
    model_max_length: int


class Detokenized(TypedDict):
    content: str


class Rendered(TypedDict):
    prompt: str


class Success(TypedDict):
    success: bool
    message: NotRequired[str]


class Health(TypedDict):
    status: str
    slots_idle: NotRequired[int]
    slots_processing: NotRequired[int]
    failed: NotRequired[dict[str, str]]


class ModelStatus(TypedDict):
    value: Literal["unloaded", "downloading", "loading", "loaded", "sleeping"]
    args: list[str]
    preset: NotRequired[str]
    failed: NotRequired[bool]
    exit_code: NotRequired[int]
    reason: NotRequired[str]
    progress: NotRequired[Json]


class Model(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    aliases: list[str]
    tags: list[str]
    status: ModelStatus
    architecture: Json
    source: Literal["preset", "models_dir", "cache"]
    can_remove: bool
    pinned: NotRequired[bool]
    meta: NotRequired[Json]
    progress: NotRequired[Json]


class Models(TypedDict):
    """OpenAI's list (``data``) and llama-server's own (``models``)."""

    object: Literal["list"]
    data: list[Model]
    models: list[Json]


class KeptStream(TypedDict):
    """Times are unix seconds, 0 = not yet."""

    conversation_id: str
    is_done: bool
    total_bytes: int
    started_at: int
    completed_at: int


class ModelEvent(TypedDict):
    model: str
    event: Literal[
        "model_status", "download_progress", "download_finished", "download_failed", "model_remove", "models_reload"
    ]
    data: NotRequired[Json]


class DeviceMemory(TypedDict):
    """Bytes."""

    weights: int
    context: int
    compute: int


class ModelMemory(TypedDict):
    """The memory of a model by device, and what was chosen to fit it."""

    devices: dict[str, DeviceMemory]
    notes: list[str]


class Props(TypedDict):
    """A model's properties, or of several models the server's own (``role``: router)."""

    default_generation_settings: Json
    model_alias: str
    model_path: str
    build_info: str
    total_slots: NotRequired[int]
    chat_template: NotRequired[str]
    chat_template_caps: NotRequired[dict[str, bool]]
    memory: NotRequired[ModelMemory]
    memory_budget: NotRequired[dict[str, int]]
    role: NotRequired[str]


class Slot(TypedDict):
    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: NotRequired[int]
    params: NotRequired[Json]
    next_token: NotRequired[list[Json]]


class SlotAction(TypedDict):
    id_slot: int
    filename: NotRequired[str]
    n_saved: NotRequired[int]
    n_written: NotRequired[int]
    n_restored: NotRequired[int]
    n_read: NotRequired[int]
    n_erased: NotRequired[int]
    timings: NotRequired[Json]


class LoraAdapter(TypedDict):
    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str


class OllamaCounts(TypedDict):
    """At the end. Durations are in nanoseconds."""

    done_reason: NotRequired[Literal["stop", "length", "load", "unload"]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]
    prompt_eval_duration: NotRequired[int]
    eval_count: NotRequired[int]
    eval_duration: NotRequired[int]


class OllamaCalledFunction(TypedDict):
    index: int
    name: str
    arguments: Json


class OllamaCall(TypedDict):
    id: str
    function: OllamaCalledFunction


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaAnswer(OllamaCounts):
    model: str
    created_at: str
    message: OllamaMessage
    done: bool
    logprobs: NotRequired[list[Json]]


class OllamaChunk(OllamaAnswer):
    """A line; of the last one ``done`` is true."""


class OllamaText(OllamaCounts):
    model: str
    created_at: str
    response: str
    done: bool
    thinking: NotRequired[str]
    context: NotRequired[list[int]]
    logprobs: NotRequired[list[Json]]


class OllamaTextChunk(OllamaText):
    """A line; of the last one ``done`` is true."""


class OllamaVersion(TypedDict):
    version: str


class OllamaDetails(TypedDict):
    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(TypedDict):
    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails
    capabilities: list[str]


class OllamaTags(TypedDict):
    models: list[OllamaModel]


class OllamaRunning(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaPs(TypedDict):
    models: list[OllamaRunning]


class OllamaShown(TypedDict):
    modelfile: str
    parameters: str
    template: str
    license: str
    details: OllamaDetails
    model_info: Json
    capabilities: list[str]
    modified_at: str


class OllamaStatus(TypedDict):
    status: str


class OllamaPulled(TypedDict):
    """Of a file that is under way its name, and how many bytes of it are there."""

    status: NotRequired[str]
    digest: NotRequired[str]
    total: NotRequired[int]
    completed: NotRequired[int]
    error: NotRequired[str]


class OllamaVectors(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: NotRequired[int]
    load_duration: NotRequired[int]
    prompt_eval_count: NotRequired[int]


class OllamaVector(TypedDict):
    embedding: list[float]
