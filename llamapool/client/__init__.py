"""A typed client of llama-server's whole API, for Llamapool and llama-server. The OpenAI SDK covers only ``/v1``.

This client needs only httpx: ``pip install llamapool[client]``.

Reading order: `client` (all methods), one file per family of endpoints (`chat`, `completion`, `openai_completions`,
`messages`, `responses`, `embeddings`, `models`, `slots`, `lora`, `text`, `server_state`), `completion_replies` and
`replies` (parsed replies), `transport` (HTTP), `stream` and `sse` (server-sent events), `errors`.
"""

from llamapool.client.client import LlamaCppClient
from llamapool.client.completion_replies import Choice, CompletionResponse, Message, StopType, Timings, Usage
from llamapool.client.errors import (
    ApiError,
    AuthenticationFailed,
    BadRequest,
    LlamaCppError,
    NotFound,
    NotSupported,
    RequestTimedOut,
    ServerUnreachable,
    Unavailable,
    UnexpectedReply,
)
from llamapool.client.messages import MessageResponse
from llamapool.client.openai_completions import TokenScore
from llamapool.client.replies import (
    EmbeddingData,
    EmbeddingsResponse,
    HealthStatus,
    LoraAdapter,
    ModelInfo,
    RerankResponse,
    RerankResult,
    SlotInfo,
    TokenizeResponse,
)
from llamapool.client.responses import ResponseReply
from llamapool.client.stream import EventStream

__all__ = [
    "ApiError",
    "AuthenticationFailed",
    "BadRequest",
    "Choice",
    "CompletionResponse",
    "EmbeddingData",
    "EmbeddingsResponse",
    "EventStream",
    "HealthStatus",
    "LlamaCppClient",
    "LlamaCppError",
    "LoraAdapter",
    "Message",
    "MessageResponse",
    "ModelInfo",
    "NotFound",
    "NotSupported",
    "RequestTimedOut",
    "RerankResponse",
    "RerankResult",
    "ResponseReply",
    "ServerUnreachable",
    "SlotInfo",
    "StopType",
    "Timings",
    "TokenScore",
    "TokenizeResponse",
    "Unavailable",
    "UnexpectedReply",
    "Usage",
]
