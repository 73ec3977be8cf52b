"""Every endpoint as `/openapi.json` describes it: the body that its parser takes, an example, the reply, the errors.

A new endpoint gets a row; a field of a body that is read by hand (``Any``) gets its schema in `FIELDS`. Tests hold the
examples and the replies against the endpoints themselves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from typing_extensions import TypedDict  # of Python 3.12, which pydantic needs

from server.dialects.chat.parse import ChatBody, ControlBody
from server.dialects.completions.parse import CompletionBody
from server.dialects.messages.parse import MessagesBody
from server.dialects.native.infill import InfillBody
from server.dialects.native.schemas import NativeBody
from server.dialects.native.tokens import DetokenizeBody, TokenizeBody
from server.dialects.ollama.parse import OllamaChatBody, OllamaGenerateBody
from server.dialects.ollama.vectors import EmbedBody, OldEmbedBody
from server.dialects.responses.parse import ResponsesBody
from server.dialects.vectors.embeddings import EmbeddingsBody
from server.dialects.vectors.rerank import RerankBody
from server.routes import inference as i
from server.routes import management as m
from server.routes.description import replies as r

Json = dict[str, Any]
SSE, NDJSON, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"
FINDS = (404, 503)
"""Errors of an endpoint that needs a model: not found, failed to load, server stopping."""
READS = (400, 408, 413, 415)
RUNS = (*READS, *FINDS, 429, 501)
"""Of one that computes: the queue is full; the model can't do it."""


class NamedModel(TypedDict):
    """A model by id or alias."""

    model: str


class PinnedModel(NamedModel, total=False):
    """``pinned`` false: it may give way to others again."""

    pinned: bool


class TranslationForm(TypedDict, total=False):
    """A form (``multipart/form-data``): ``file`` is required."""

    file: str
    model: str
    prompt: str
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"]
    temperature: float


class TranscriptionForm(TypedDict, total=False):
    """A form (``multipart/form-data``): ``file`` is required."""

    file: str
    model: str
    prompt: str
    language: str
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"]
    temperature: float
    stream: bool


class ConversationMetadata(TypedDict):
    """A conversation's metadata: up to 16 texts by name."""

    metadata: dict[str, str]


class NewItems(TypedDict):
    """Up to 20 items to add to a conversation."""

    items: list[Json]


class NewConversation(TypedDict, total=False):
    """A conversation's first items and metadata."""

    items: list[Json]
    metadata: dict[str, str]


class FileForm(TypedDict, total=False):
    """A form (``multipart/form-data``): ``file`` is required, and ``purpose`` except in Anthropic's API."""

    file: str
    purpose: str


class NewBatch(TypedDict):
    """An uploaded file of requests, the endpoint that they are for, and the time in which they are to be done."""

    input_file_id: str
    endpoint: str
    completion_window: str


class NewPrediction(TypedDict):
    """Up to 128 requests. Each has ``@requestFormat`` (an endpoint's path or its name in camelCase) and its body."""

    instances: list[Json]


class NewMessageBatch(TypedDict):
    """Requests, each with ``custom_id`` and ``params``, the body of a message."""

    requests: list[Json]


class PulledModel(NamedModel, total=False):
    """``model`` as ``owner/name[:quantization]`` of the hub, also with ``hf.co/`` before it."""

    stream: bool


class SlotFile(TypedDict, total=False):
    """``filename`` is required for save and restore."""

    filename: str
    model: str


class StreamNames(TypedDict):
    """The conversations that a client has streams of."""

    conversation_ids: list[str]


class Scale(TypedDict):
    """How strongly a LoRA adapter works on all requests."""

    id: int
    scale: float


@dataclass(frozen=True, slots=True)
class Operation:
    """``body`` and `example` of the request. ``reply``: schema of 200, None for text or nothing. ``stream``: schema of
    each event or line of `media`. ``loads``: whether it loads a model unless ``autoload`` in its query says
    otherwise.
    """

    reply: Any = None
    body: Any = None
    example: Any = None
    stream: Any = None
    media: str = SSE
    errors: tuple[int, ...] = ()
    status: int | None = 200  # of success; None = never
    loads: bool = False
    takes: str = "application/json"  # the type of the body


FORM = "multipart/form-data"
_FEW: Json = {"options": {"num_predict": 16}, "stream": False}
HI: Json = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
OPERATIONS: Mapping[Callable[..., Any], Operation] = {
    m.health.root: Operation(media="text/html", errors=(404,)),
    m.health.health: Operation(r.Health, errors=FINDS),
    m.health.livez: Operation(r.Health),
    m.health.readyz: Operation(r.Health, errors=(503,)),
    m.models.list_models: Operation(r.Models, errors=(503,)),
    m.models.download_model: Operation(
        r.Success, NamedModel, {"model": "ggml-org/tinygemma3-GGUF:Q8_0"}, errors=(*READS, *FINDS, 501)
    ),
    m.models.remove_model: Operation(r.Success, errors=(400, *FINDS)),
    m.models.show_model: Operation(r.Model, errors=(404,)),
    m.models.load_model: Operation(r.Success, NamedModel, {"model": "demo"}, errors=(*READS, *FINDS)),
    m.models.unload_model: Operation(r.Success, NamedModel, {"model": "demo"}, errors=(*READS, *FINDS)),
    m.models.pin_model: Operation(r.Success, PinnedModel, {"model": "demo", "pinned": False}, errors=(*READS, *FINDS)),
    m.models.model_events: Operation(stream=r.ModelEvent),
    m.props.props: Operation(r.Props, errors=(400, *FINDS), loads=True),
    m.props.change_props: Operation(r.Success, dict[str, Any], {}, errors=(*READS, 404, 501)),
    m.slots.slots: Operation(list[r.Slot], errors=(400, *FINDS, 501)),
    m.slot_actions.act_on_slot: Operation(r.SlotAction, SlotFile, {"filename": "talk.bin"}, errors=RUNS, loads=True),
    m.lora.adapters: Operation(list[r.LoraAdapter], errors=(400, *FINDS, 501), loads=True),
    m.lora.set_adapters: Operation(r.Success, list[Scale], [], errors=RUNS, loads=True),
    m.metrics.metrics: Operation(media=TEXT, errors=(404, 501)),
    m.usage.usage: Operation(r.UsageReport, errors=(400, 503)),
    i.chat.chat_completions: Operation(r.ChatCompletion, ChatBody, HI, r.ChatCompletionChunk, errors=RUNS, loads=True),
    i.chat.chat_input_tokens: Operation(r.InputTokens, ChatBody, HI, errors=RUNS, loads=True),
    i.chat.post_apply_template: Operation(r.Rendered, ChatBody, HI, errors=RUNS, loads=True),
    i.streams.read_stream: Operation(stream=dict[str, Any], errors=(400, 404, 503)),
    i.streams.look_up_streams: Operation(list[r.KeptStream], StreamNames, {"conversation_ids": ["c1"]}, errors=READS),
    i.streams.stop_stream: Operation(errors=(400,), status=204),
    i.chat.control: Operation(
        r.Success, ControlBody, {"id": "chatcmpl-1", "action": "reasoning_end"}, errors=(*READS, 404)
    ),
    i.messages.post_messages: Operation(
        r.AnthropicMessage, MessagesBody, HI, r.AnthropicEvent, errors=RUNS, loads=True
    ),
    i.messages.post_count_tokens: Operation(r.InputTokens, MessagesBody, HI, errors=RUNS, loads=True),
    i.responses.create_response: Operation(
        r.OpenAIResponse,
        ResponsesBody,
        {"input": "Hi", "max_output_tokens": 16},
        r.ResponseEvent,
        errors=RUNS,
        loads=True,
    ),
    i.responses.count_input_tokens: Operation(r.InputTokens, ResponsesBody, {"input": "Hi"}, errors=RUNS, loads=True),
    i.responses.compact_response: Operation(
        r.CompactedResponse, ResponsesBody, {"input": "Hi"}, errors=RUNS, loads=True
    ),
    i.responses.get_response: Operation(r.OpenAIResponse, errors=(404,)),
    i.responses.delete_response: Operation(r.Deleted, errors=(404,)),
    i.responses.cancel_response: Operation(r.OpenAIResponse, errors=(400, 404)),
    i.responses.list_input_items: Operation(r.ObjectList, errors=(400, 404)),
    i.conversations.create_conversation: Operation(
        r.Conversation, NewConversation, {"items": [{"role": "user", "content": "Hi"}]}, errors=READS
    ),
    i.conversations.get_conversation: Operation(r.Conversation, errors=(404,)),
    i.conversations.update_conversation: Operation(
        r.Conversation, ConversationMetadata, {"metadata": {"topic": "foxes"}}, errors=(*READS, 404)
    ),
    i.conversations.delete_conversation: Operation(r.Deleted, errors=(404,)),
    i.conversations.list_conversation_items: Operation(r.ObjectList, errors=(400, 404)),
    i.conversations.create_conversation_items: Operation(
        r.ObjectList, NewItems, {"items": [{"role": "user", "content": "Hi"}]}, errors=(*READS, 404)
    ),
    i.conversations.get_conversation_item: Operation(dict[str, Any], errors=(404,)),
    i.conversations.delete_conversation_item: Operation(r.Conversation, errors=(404,)),
    i.files.upload_file: Operation(
        r.File | r.AnthropicFile, FileForm, {"file": "", "purpose": "batch"}, errors=READS, takes=FORM
    ),
    i.files.list_files: Operation(r.ObjectList, errors=(400,)),
    i.files.get_file: Operation(r.File | r.AnthropicFile, errors=(404,)),
    i.files.get_file_content: Operation(media="application/octet-stream", errors=(404,)),
    i.files.delete_file: Operation(r.Deleted, errors=(404,)),
    i.batches.create_batch: Operation(
        r.Batch,
        NewBatch,
        {"input_file_id": "file-x", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        errors=(*READS, 404),
    ),
    i.batches.list_batches: Operation(r.ObjectList, errors=(400,)),
    i.batches.get_batch: Operation(r.Batch, errors=(404,)),
    i.batches.cancel_batch: Operation(r.Batch, errors=(404,)),
    i.batches.create_message_batch: Operation(
        r.MessageBatch, NewMessageBatch, {"requests": [{"custom_id": "a", "params": HI}]}, errors=READS
    ),
    i.batches.list_message_batches: Operation(r.MessageBatches, errors=(400,)),
    i.batches.get_message_batch: Operation(r.MessageBatch, errors=(404,)),
    i.batches.get_message_batch_results: Operation(media="application/x-jsonl", errors=(400, 404)),
    i.batches.cancel_message_batch: Operation(r.MessageBatch, errors=(404,)),
    i.batches.delete_message_batch: Operation(r.DeletedBatch, errors=(400, 404)),
    i.completions.openai_completions: Operation(
        r.Completion, CompletionBody, {"prompt": "Once", "max_tokens": 16}, r.Completion, errors=RUNS
    ),
    i.completions.native_completions: Operation(
        r.NativeCompletion, NativeBody, {"prompt": "Once", "n_predict": 16}, r.NativeChunk, errors=RUNS
    ),
    i.completions.infill: Operation(
        r.NativeCompletion,
        InfillBody,
        {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 16},
        r.NativeChunk,
        errors=RUNS,
        loads=True,
    ),
    i.transcriptions.post_transcription: Operation(
        *(r.Transcript, TranscriptionForm, {"file": "", "response_format": "json"}, r.TranscriptEvent),
        errors=(*RUNS, 501),
        loads=True,
        takes=FORM,
    ),
    i.transcriptions.post_translation: Operation(
        *(r.Transcript, TranslationForm, {"file": "", "response_format": "json"}),
        errors=(*RUNS, 501),
        loads=True,
        takes=FORM,
    ),
    i.moderations.create_moderation: Operation(status=None, errors=(501,)),
    i.vectors.openai_embeddings: Operation(
        r.Embeddings, EmbeddingsBody, {"input": ["Hi", "Hello"]}, errors=RUNS, loads=True
    ),
    i.vectors.native_embeddings: Operation(
        list[r.NativeEmbedding], EmbeddingsBody, {"content": "Hi"}, errors=RUNS, loads=True
    ),
    i.vectors.rerank: Operation(
        r.Reranked | list[r.TeiRank],
        RerankBody,
        {"query": "a planet", "documents": ["Mars", "a panda"]},
        errors=RUNS,
        loads=True,
    ),
    i.vectors.cohere_rerank: Operation(
        r.CohereReranked,
        RerankBody,
        {"query": "a planet", "documents": ["Mars", "a panda"], "top_n": 1},
        errors=RUNS,
        loads=True,
    ),
    i.tokens.post_tokenize: Operation(r.Tokens, TokenizeBody, {"content": "Hi"}, errors=(*READS, *FINDS), loads=True),
    i.tokens.tokenizer_info: Operation(r.TokenizerInfo, errors=FINDS, loads=True),
    i.tokens.post_detokenize: Operation(
        r.Detokenized, DetokenizeBody, {"tokens": [72, 105]}, errors=(*READS, *FINDS), loads=True
    ),
    i.ollama.post_chat: Operation(
        *(r.OllamaAnswer, OllamaChatBody, {"messages": [{"role": "user", "content": "Hi"}], **_FEW}, r.OllamaChunk),
        media=NDJSON,
        errors=RUNS,
        loads=True,
    ),
    i.ollama.post_generate: Operation(
        *(r.OllamaText, OllamaGenerateBody, {"prompt": "Hi", **_FEW}, r.OllamaTextChunk), media=NDJSON, errors=RUNS
    ),
    i.vertex.predict: Operation(
        r.Predictions,
        NewPrediction,
        {"instances": [{"@requestFormat": "chatCompletions", **HI}]},
        errors=(*READS, 404, 429),
    ),
    i.ollama.version: Operation(r.OllamaVersion),
    i.ollama.list_tags: Operation(r.OllamaTags),
    i.ollama.list_running: Operation(r.OllamaPs),
    i.ollama.show: Operation(r.OllamaShown, NamedModel, {"model": "demo"}, errors=(*READS, 404)),
    i.ollama.post_embed: Operation(r.OllamaVectors, EmbedBody, {"input": ["Hi", "Hello"]}, errors=RUNS, loads=True),
    i.ollama.post_embeddings: Operation(r.OllamaVector, OldEmbedBody, {"prompt": "Hi"}, errors=RUNS, loads=True),
    i.ollama.pull: Operation(
        r.OllamaStatus, PulledModel, {"model": "demo"}, r.OllamaPulled, media=NDJSON, errors=(*READS, *FINDS, 501)
    ),
    i.ollama.delete: Operation(None, NamedModel, {"model": "org/model-GGUF:Q8_0"}, media=TEXT, errors=(*READS, *FINDS)),
    i.ollama.manage: Operation(status=None, errors=(501,)),
    i.ollama.blobs: Operation(status=None, errors=(501,)),
}

_STRING: Json = {"type": "string"}
_STRINGS: Json = {"type": "array", "items": _STRING}
_OBJECTS: Json = {"type": "array", "items": {"type": "object"}}
_SCHEMA: Json = {"type": ["object", "boolean"], "description": "A JSON Schema."}
_WHOM: Json = {"description": "The end user; distinguishes clients."}
_REFUSED: Json = {"description": "Refused unless it is empty."}
_PART: Json = {
    "type": "object",
    "properties": {
        "type": _STRING,
        "text": _STRING,
        "file": {
            "type": "object",
            "description": "OpenAI chat's file: PDF, text, Markdown, CSV, HTML, an image, audio or video.",
            "properties": {"file_data": _STRING, "file_id": _STRING, "filename": _STRING},
        },
        "source": {"type": "object", "description": "Of Anthropic's image and document blocks."},
    },
    "required": ["type"],
    "additionalProperties": True,
}
_CONTENT: Json = {"anyOf": [_STRING, {"type": "array", "items": _PART}, {"type": "null"}]}
_PROMPT: Json = {
    "description": "A text, token ids, both mixed, or a list of such.",
    "anyOf": [
        _STRING,
        {"type": "array", "items": {"anyOf": [_STRING, {"type": "integer"}, {"type": "array"}, {"type": "object"}]}},
        {"type": "object", "properties": {"prompt_string": _STRING}},
    ],
}
FIELDS: Mapping[str, Json] = {
    "messages": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"role": _STRING, "content": _CONTENT},
            "required": ["role"],
            "additionalProperties": True,
        },
    },
    "system": {"anyOf": [_STRING, _OBJECTS]},
    "tools": _OBJECTS,
    "tool_choice": {"anyOf": [_STRING, {"type": "object"}]},
    "functions": _OBJECTS,
    "function_call": {"anyOf": [_STRING, {"type": "object"}]},
    "stop": {"anyOf": [_STRING, _STRINGS]},
    "stop_sequences": _STRINGS,
    "samplers": {"anyOf": [_STRINGS, _STRING], "description": "Names, or their letters."},
    "dry_sequence_breakers": _STRINGS,
    "logit_bias": {
        "anyOf": [{"type": "object", "additionalProperties": {"type": ["number", "boolean"]}}, {"type": "array"}],
        "description": "Token or text to bias; as pairs, too.",
    },
    "lora": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "scale": {"type": "number"}},
            "required": ["id", "scale"],
        },
    },
    "json_schema": _SCHEMA,
    "guided_json": {"anyOf": [_SCHEMA, _STRING]},
    "guided_json_object": {"type": "boolean"},
    "guided_regex": _STRING,
    "guided_choice": _STRINGS,
    "guided_grammar": _STRING,
    "guided_whitespace_pattern": _STRING,
    "structured_outputs": {"type": "object"},
    "response_format": {"type": "object"},
    "grammar_triggers": _OBJECTS,
    "preserved_tokens": {"type": "array", "items": {"type": ["integer", "string"]}},
    "prompt": _PROMPT,
    "input": _PROMPT,
    "content": _PROMPT,
    "input_prefix": _PROMPT,
    "input_suffix": _PROMPT,
    "input_extra": _OBJECTS,
    "image_data": {
        **_OBJECTS,
        "description": "Older llama-servers: base64 data and the id that the prompt has as [img-id].",
    },
    "tokens": {"type": "array", "items": {"type": "integer"}},
    "response_fields": _STRINGS,
    "logprobs": {"type": ["integer", "boolean"]},
    "query": _STRING,
    "documents": {"type": "array", "items": {"anyOf": [_STRING, {"type": "object"}]}},
    "texts": _STRINGS,
    "encoding_format": {"enum": ["float", "base64"]},
    "modalities": _STRINGS,
    "system_prompt": {"anyOf": [_STRING, {"type": "object"}]},
    "include": _STRINGS,
    "images": {"type": "array", "items": _STRING, "description": "In base64."},
    "format": {"anyOf": [{"enum": ["json", ""]}, {"type": "object"}], "description": "JSON, or a JSON Schema."},
    "metadata": {"type": "object"},
    "context_management": {"anyOf": [_OBJECTS, {"type": "object"}]},
    "conversation": {"anyOf": [_STRING, {"type": "object"}]},
    "user": _WHOM,
    "safety_identifier": _WHOM,
    "audio": _REFUSED,
    "web_search_options": _REFUSED,
}
"""Fields of bodies that are read by hand, by their names."""
