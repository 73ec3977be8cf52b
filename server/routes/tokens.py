"""``POST /tokenize``, ``POST /detokenize`` and ``GET /tokenizer_info``."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.native.tokens import DetokenizeBody, TokenizeBody, read_detokenize, read_tokenize
from server.routes.openapi import FINDS, READS, describe
from server.serving.generate import compute
from server.serving.services import facts_of
from server.transport.body import read_as
from server.transport.errors import json_reply

router = APIRouter(tags=["tokens"])


@router.post("/tokenize")
@describe("$Tokens", TokenizeBody, {"content": "Hi"}, errors=(*READS, *FINDS), loads=True)
async def post_tokenize(request: Request) -> Response:
    """Return the tokens of a text, optionally with media."""
    parsed = await read_as(request, read_tokenize)
    return await compute(request, parsed, parsed.work, parsed.media)


@router.get("/tokenizer_info")
@describe("$TokenizerInfo", errors=FINDS, loads=True)
async def tokenizer_info(request: Request, model: str = "") -> Response:
    """Return special tokens, chat template and context size in vLLM's format. lm-evaluation-harness reads them."""
    _, facts = await facts_of(request, model or None)
    info = {
        "tokenizer_class": "gguf",
        "bos_token": facts.info.bos_token or None,
        "eos_token": facts.info.eos_token or None,
        "chat_template": facts.template.source,
        "model_max_length": facts.n_ctx_seq,
    }
    return json_reply(info)


@router.post("/detokenize")
@describe("$Detokenized", DetokenizeBody, {"tokens": [72, 105]}, errors=(*READS, *FINDS), loads=True)
async def post_detokenize(request: Request) -> Response:
    """Return the text of tokens."""
    parsed = await read_as(request, read_detokenize)
    return await compute(request, parsed, parsed.work)
