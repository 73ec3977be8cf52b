"""``POST /v1/audio/transcriptions`` and ``/v1/audio/translations``: speech to text by a model with audio input."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dialects.transcriptions import TRANSCRIPTIONS, Task, rendered
from server.routes.openapi import FORM, computes
from server.serving.generate import Exchange
from server.transport.body import read_form

router = APIRouter(tags=["transcriptions"])
_FORM = {"file": "", "response_format": "json", "model?": "demo", "prompt?": "", "temperature?": 0.5}


@router.post("/v1/audio/transcriptions")
@router.post("/audio/transcriptions")
@computes("$Transcript", example=_FORM | {"language?": "en", "stream?": False}, stream="$TranscriptEvent", takes=FORM)
async def post_transcription(request: Request) -> Response:
    """Return the text of a recording, as JSON, plain text or subtitles, or as events while it is generated."""
    return await _answer(request, "transcribe")


@router.post("/v1/audio/translations")
@computes("$Transcript", example=_FORM, takes=FORM)
async def post_translation(request: Request) -> Response:
    """Return the English text of a recording in another language, as JSON, plain text or subtitles."""
    return await _answer(request, "translate")


async def _answer(request: Request, task: Task) -> Response:
    form = await read_form(request)
    parsed = TRANSCRIPTIONS.parse(form.fields, form.files, task)
    exchange = Exchange(request, TRANSCRIPTIONS, parsed)
    if parsed.options.stream:
        return await exchange.stream()
    body = await exchange.collect()
    assert isinstance(body, dict), "one request has one reply"
    content, media_type = rendered(body, parsed.form.response_format)
    return Response(content, media_type=media_type, headers=exchange.headers)
