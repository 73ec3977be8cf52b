"""Endpoints that use a model and store nothing: OpenAI's chat, completions, embeddings and transcriptions, Anthropic's
Messages, llama-server's own completions, embeddings, rankings and tokens. Each handler names a dialect.
"""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.chat.parse import CHAT, ChatBody, ControlBody, apply_template, input_tokens
from server.dialects.completions.parse import COMPLETIONS, CompletionBody
from server.dialects.fields import parse
from server.dialects.messages.mcp import read_mcp
from server.dialects.messages.parse import MESSAGES, MessagesBody, MessagesRequest, count_message_tokens, parse_messages
from server.dialects.native.parse import INFILL, NATIVE, InfillBody, NativeBody
from server.dialects.native.tokens import DetokenizeBody, TokenizeBody, read_detokenize, read_tokenize
from server.dialects.transcriptions import TRANSCRIPTIONS, Task, rendered
from server.dialects.vectors import EmbeddingsBody, RerankBody, read_embeddings, read_rerank
from server.errors import NotSupported
from server.routes.openapi import FINDS, FORM, HI, READS, computes, describe
from server.serving.generate import Exchange, answer, compute, embed, respond
from server.serving.mcp import read_with_servers
from server.serving.services import facts_of, key_of, services
from server.transport.body import read_as, read_form, read_json
from server.transport.errors import json_reply

chat = APIRouter(tags=["chat"])
messages = APIRouter(tags=["messages"])
completions = APIRouter(tags=["completions"])
vectors = APIRouter(tags=["vectors"])
transcriptions = APIRouter(tags=["transcriptions"])
tokens = APIRouter(tags=["tokens"])
_GAP = {"input_prefix": "def add(a, b):\n    return ", "input_suffix": "\n", "n_predict": 16}
_RANKED = {"query": "a planet", "documents": ["Mars", "a panda"]}
_FORM = {"file": "", "response_format": "json", "model?": "demo", "prompt?": "", "temperature?": 0.5}


@chat.post("/v1/chat/completions")
@chat.post("/chat/completions")
@computes("$ChatCompletion", ChatBody, HI, "$ChatCompletionChunk")
async def chat_completions(request: Request) -> Response:
    """OpenAI chat completions, with llama.cpp's sampling fields."""
    return await answer(request, CHAT)


@chat.post("/v1/chat/completions/input_tokens")
@chat.post("/chat/completions/input_tokens")
@computes("$InputTokens", ChatBody, HI)
async def chat_input_tokens(request: Request) -> Response:
    """Return how many tokens a chat body's prompt has, without generating."""
    parsed = await read_as(request, CHAT.parse)
    return await compute(request, parsed, partial(input_tokens, parsed.conversation), parsed.media)


@chat.post("/apply-template")
@computes("$Rendered", ChatBody, HI)
async def post_apply_template(request: Request) -> Response:
    """Return the prompt that a chat body renders to, without generating."""
    parsed = await read_as(request, CHAT.parse)
    documents = [each for each in parsed.media if each.kind == "document"]
    return await compute(request, parsed, partial(apply_template, parsed.conversation), documents)


@chat.post("/v1/chat/completions/control")
@describe("$Success", ControlBody, {"id": "chatcmpl-1", "action": "reasoning_end"}, errors=(*READS, 404))
async def control(request: Request) -> Response:
    """End the reasoning of a running chat, or cancel a request.

    ``{"id": completion, "action": "reasoning_end"}`` ends the reasoning of a chat started with ``reasoning_control``;
    ``"cancel"`` (not in llama-server) ends any request, whose client gets an error.

    An unknown id is ``"success": false`` with a message. A key can control requests of keys with its name, or all if
    it may see all. ``model`` may be omitted, since ids are unique.
    """
    used = services(request)
    wanted = parse(ControlBody, await read_json(request))
    model = used.pool.resolve(wanted.model).id if wanted.model else None
    caller, found = key_of(request), used.running.get(wanted.id)
    if found is None or model not in (None, found.model) or not (caller.sees_all or caller.owner == found.owner):
        return json_reply({"success": False, "message": "no active completion for this id"})
    if wanted.action == "cancel":
        found.cancel()
    elif found.reasoning is None:
        return json_reply({"success": False, "message": "reasoning control not enabled for this completion"})
    else:
        found.reasoning.end()
    return json_reply({"success": True})


@messages.post("/v1/messages")
@computes("$AnthropicMessage", MessagesBody, HI, "$AnthropicEvent")
async def post_messages(request: Request) -> Response:
    """Return a message that answers a conversation, whole or as a stream of typed events."""
    return await respond(request, MESSAGES, await _parsed_message(request))


@messages.post("/v1/messages/count_tokens")
@computes("$InputTokens", MessagesBody, HI)
async def post_count_tokens(request: Request) -> Response:
    """Return how many tokens a body's prompt has, without generating."""
    parsed = await _parsed_message(request, generate=False)
    return await compute(request, parsed, partial(count_message_tokens, parsed.conversation), parsed.media)


async def _parsed_message(request: Request, *, generate: bool = True) -> MessagesRequest:
    """Parse the body, and list the tools of the MCP servers that it names."""
    may_name_servers = services(request).mcp.is_for_requests
    parse = partial(parse_messages, cipher=services(request).reasoning, generate=generate)

    def first(given: dict[str, Any]) -> MessagesRequest | dict[str, Any]:
        return given if may_name_servers and given.get("mcp_servers") else parse(given)

    given = await read_as(request, first)
    if isinstance(given, MessagesRequest):
        return given
    named = read_mcp(given, request.headers.get("anthropic-beta", ""))
    return await read_with_servers(request, given, named, lambda body, mcp: parse(body, mcp=mcp))


@completions.post("/v1/completions")
@computes("$Completion", CompletionBody, {"prompt": "Once", "max_tokens": 16}, "$Completion")
async def openai_completions(request: Request) -> Response:
    """Complete a text as OpenAI's API, with llama.cpp's sampling fields."""
    return await answer(request, COMPLETIONS)


@completions.post("/completion")
@completions.post("/completions")
@computes("$NativeCompletion", NativeBody, {"prompt": "Once", "n_predict": 16}, "$NativeChunk")
async def native_completions(request: Request) -> Response:
    """Return a native completion of one prompt or of several."""
    return await answer(request, NATIVE)


@completions.post("/infill")
@computes("$NativeCompletion", InfillBody, _GAP, "$NativeChunk")
async def infill(request: Request) -> Response:
    """Generate the code between a prefix and a suffix."""
    return await answer(request, INFILL)


@completions.post("/v1/moderations")
@describe(status=None, errors=(501,))
async def create_moderation() -> Response:
    """Answer 501, as no model here returns OpenAI's categories of harmful content with scores."""
    raise NotSupported(
        "moderations: this server has no classifier for OpenAI's categories of harmful content; load a guard model "
        "such as Llama Guard and ask it at /v1/chat/completions"
    )


@vectors.post("/v1/embeddings")
@computes("$Embeddings", EmbeddingsBody, {"input": ["Hi", "Hello"]})
async def openai_embeddings(request: Request) -> Response:
    """OpenAI embeddings."""
    return await embed(request, await read_as(request, partial(read_embeddings, native=False)))


@vectors.post("/embedding")
@vectors.post("/embeddings")
@computes(["$NativeEmbedding"], EmbeddingsBody, {"content": "Hi"})
async def native_embeddings(request: Request) -> Response:
    """Return embeddings in llama-server's own list, with a vector for each token where the pooling is none."""
    return await embed(request, await read_as(request, partial(read_embeddings, native=True)))


@vectors.post("/rerank")
@vectors.post("/reranking")
@vectors.post("/v1/rerank")
@vectors.post("/v1/reranking")
@computes(("$Reranked", ["$TeiRank"]), RerankBody, _RANKED)
async def rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query, in Jina's shape or, where ``texts`` is given, in TEI's."""
    return await embed(request, await read_as(request, read_rerank))


@vectors.post("/v2/rerank")
@computes("$CohereReranked", RerankBody, _RANKED | {"top_n": 1})
async def cohere_rerank(request: Request) -> Response:
    """Rank documents by their relevance to a query, in the shape of Cohere's second API."""
    return await embed(request, await read_as(request, partial(read_rerank, cohere=True)))


@transcriptions.post("/v1/audio/transcriptions")
@transcriptions.post("/audio/transcriptions")
@computes("$Transcript", example=_FORM | {"language?": "en", "stream?": False}, stream="$TranscriptEvent", takes=FORM)
async def post_transcription(request: Request) -> Response:
    """Return the text of a recording, as JSON, plain text or subtitles, or as events while it is generated."""
    return await _transcribed(request, "transcribe")


@transcriptions.post("/v1/audio/translations")
@computes("$Transcript", example=_FORM, takes=FORM)
async def post_translation(request: Request) -> Response:
    """Return the English text of a recording in another language, as JSON, plain text or subtitles."""
    return await _transcribed(request, "translate")


async def _transcribed(request: Request, task: Task) -> Response:
    form = await read_form(request)
    wanted = TRANSCRIPTIONS.parse(form.fields, form.files, task)
    exchange = Exchange(request, TRANSCRIPTIONS, wanted)
    if wanted.options.stream:
        return await exchange.stream()
    body = await exchange.collect()
    assert isinstance(body, dict), "one request has one reply"
    content, kind = rendered(body, wanted.form.response_format)
    return Response(content, media_type=kind, headers=exchange.headers)


@tokens.post("/tokenize")
@describe("$Tokens", TokenizeBody, {"content": "Hi"}, errors=(*READS, *FINDS), loads=True)
async def post_tokenize(request: Request) -> Response:
    """Return the tokens of a text, or of one with media."""
    wanted = await read_as(request, read_tokenize)
    return await compute(request, wanted, wanted.work, wanted.media)


@tokens.get("/tokenizer_info")
@describe("$TokenizerInfo", errors=FINDS, loads=True)
async def tokenizer_info(request: Request, model: str = "") -> Response:
    """Return what a client needs besides `/tokenize` to count tokens as the model does (vLLM's endpoint, for
    lm-evaluation-harness).
    """
    _, facts = await facts_of(request, model or None)
    shown = {
        "tokenizer_class": "gguf",
        "bos_token": facts.info.bos_token or None,
        "eos_token": facts.info.eos_token or None,
        "chat_template": facts.template.source,
        "model_max_length": facts.n_ctx_seq,
    }
    return json_reply(shown)


@tokens.post("/detokenize")
@describe("$Detokenized", DetokenizeBody, {"tokens": [72, 105]}, errors=(*READS, *FINDS), loads=True)
async def post_detokenize(request: Request) -> Response:
    """Return the text of tokens."""
    wanted = await read_as(request, read_detokenize)
    return await compute(request, wanted, wanted.work)
