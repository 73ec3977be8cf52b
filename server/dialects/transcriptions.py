"""``POST /v1/audio/transcriptions`` and ``/translations``: a form becomes a conversation with one audio part.

The instruction of a transcription is llama-server's (tools/server/server-chat.cpp,
convert_transcriptions_to_chatcmpl; common/chat.cpp, common_chat_get_asr_prompt), and so are the events of the reply
(server-task.cpp, to_json_oaicompat_asr), which are OpenAI's. Unlike in llama-server, ``prompt`` is a hint after the
instruction, and all of OpenAI's formats are supported. They have one segment, because such models return no timestamps.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from server.chat.assembler import Assembler, Delta, Kind
from server.chat.conversation import Conversation, Message, ReasoningSettings, TextPart
from server.dialects.common import DONE, Header, Json, event, random_id
from server.dialects.dialect import Context, Dialect, Generation, Writer
from server.dialects.fields import Body, CountOrAll, Fraction, Number, SoftCount, field_error, parse
from server.dialects.generation import GenerationFields, Logprobs, ParsedRequest
from server.dialects.sampling import Seed
from server.dialects.usage import Usage
from server.dialects.warnings import unused_fields
from server.engine.request import Event, Finished, Request, Text
from server.errors import NotSupported, invalid
from server.formats.parsing.reasoning import OutputParser
from server.media.bitmap import bitmaps_of
from server.media.source import Media
from server.pool.model import LoadedModel

Task = Literal["transcribe", "translate"]
_INSTRUCTIONS: Mapping[Task, str] = {
    "transcribe": "Transcribe audio to text",
    "translate": "Translate the speech in the audio into English text",
}
_HINT = "The audio may continue this text or contain its names and terms; spell them in the same way: "
_LFM2 = ("<|tool_list_start|>", "<|tool_list_end|>")  # only in the templates of this model family
_LFM2_SYSTEM = "Perform ASR."
_TIMES = "timestamp_granularities[]"
_WITHOUT_EFFECT = ("chunking_strategy", "include[]", "known_speaker_names[]", "known_speaker_references[]")


class TranscriptionForm(Body):
    """The fields of a form except its file. Their values are strings."""

    model_config = Body.model_config | {"strict": False}

    model: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Number | None = None
    top_p: Fraction | None = None
    top_k: SoftCount | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    max_tokens: CountOrAll | None = None
    max_completion_tokens: CountOrAll | None = None
    language: str = ""
    stream: bool = False


_FIELDS: Mapping[Task, Collection[str]] = {
    "transcribe": (*TranscriptionForm.model_fields, *_WITHOUT_EFFECT, _TIMES),
    "translate": TranscriptionForm.model_fields.keys() - {"language", "stream"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest(ParsedRequest):
    """A checked form."""

    task: Task
    form: TranscriptionForm

    def generation(self, context: Context) -> Generation:
        model = context.model
        if model.media is None or "audio" not in model.media.kinds:
            raise NotSupported("The current model does not support audio input.")
        audio, *more = (bitmap for found in context.media.values() for bitmap in bitmaps_of(found))
        if more or audio.kind != "audio":
            raise invalid("file", "is not an audio file")
        header = Header(model.spec.id, f"transcript-{random_id()}")
        output, request = self.prepare(context, header.id, _conversation(self, model))
        seconds = audio.width / model.media.sample_rate
        return Generation([request], TranscriptWriter(output.parser(), self, request, seconds))


def parse_transcription(
    given: Mapping[str, Sequence[str]], files: Mapping[str, bytes], task: Task = "transcribe"
) -> TranscriptionRequest:
    if "file" not in files:
        raise invalid("file", "No input file found for transcription")
    fields = {name: values[-1] for name, values in given.items()}
    warnings = unused_fields(fields, _FIELDS[task])
    form = parse(TranscriptionForm, {name: text for name, text in fields.items() if name in _FIELDS[task] and text})
    if form.stream and form.response_format not in ("json", "text"):
        raise field_error("stream", f"can't be used with response_format {form.response_format}")
    if "word" in given.get(_TIMES, ()):
        raise field_error(_TIMES, "models give no times of words; leave it out")
    warnings = [*(f"{name} is ignored" for name in _WITHOUT_EFFECT if fields.get(name)), *warnings]
    return TranscriptionRequest(
        options=GenerationFields.of(form),
        media=[Media("audio", at="file", source=files["file"])],
        warnings=warnings,
        logprobs=Logprobs(form.response_format == "verbose_json"),
        task=task,
        form=form,
    )


def _conversation(parsed: TranscriptionRequest, model: LoadedModel) -> Conversation:
    is_lfm2 = parsed.task == "transcribe" and all(word in model.template.source for word in _LFM2)
    text = "" if is_lfm2 else _INSTRUCTIONS[parsed.task]
    language, hint = parsed.form.language, parsed.form.prompt
    text += f" (language: {language})" if language else ""
    text = "\n".join(filter(None, [text, f"{_HINT}{hint}" if hint else ""]))
    user = Message("user", (TextPart(text), *parsed.media) if text else tuple(parsed.media))
    system = (Message("system", _LFM2_SYSTEM),) if is_lfm2 else ()
    messages, reasoning = (*system, user), ReasoningSettings(enabled=False)
    return Conversation(messages, reasoning=reasoning, default_system=False, messages_at="file")


TRANSCRIPTIONS = Dialect(parse_transcription)


class TranscriptWriter(Writer):
    """Writes a transcript as events or as an object, which `rendered` converts to other formats.

    `seconds`: the duration of the audio.
    """

    def __init__(self, parser: OutputParser, parsed: TranscriptionRequest, request: Request, seconds: float) -> None:
        self._assembler = Assembler(parser)
        self._parsed, self._request, self._seconds = parsed, request, seconds
        self._tokens: list[int] = []
        self._logprobs: list[float] = []

    def feed(self, _prompt: int, item: Event) -> list[bytes]:
        if isinstance(item, Text):
            self._tokens += item.tokens
            self._logprobs += (token.logprob for token in item.logprobs)
            return _deltas(self._assembler.feed(item))
        if isinstance(item, Finished):
            return [*_deltas(self._assembler.finish(item)), event(self._done())]
        return []

    def finish(self) -> list[bytes]:
        return [DONE]

    def body(self) -> Json:
        """Return the reply. For formats other than JSON, its only member is ``text``."""
        text = self._assembler.text(Kind.TEXT)
        seconds = self._seconds
        match self._parsed.form.response_format:
            case "text":
                return {"text": f"{text}\n"}
            case "srt":
                return {"text": f"1\n{_time(0, ',')} --> {_time(seconds, ',')}\n{text.strip()}\n\n"}
            case "vtt":
                return {"text": f"WEBVTT\n\n{_time(0, '.')} --> {_time(seconds, '.')}\n{text.strip()}\n\n"}
            case "verbose_json":
                return self._verbose(text)
        return self._done()

    def _verbose(self, text: str) -> Json:
        written, parsed = text.encode(), self._parsed
        segment: dict[str, Any] = {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": self._seconds,
            "text": text,
            "tokens": self._tokens,
            "temperature": self._request.sampling.temperature,
            "avg_logprob": sum(self._logprobs) / max(len(self._logprobs), 1),
            "compression_ratio": len(written) / max(len(zlib.compress(written)), 1),
            "no_speech_prob": 0.0,
        }
        return {
            "task": parsed.task,
            "language": "english" if parsed.task == "translate" else parsed.form.language or "unknown",
            "duration": self._seconds,
            "text": text,
            "segments": [segment],
            "usage": self._usage(),
        }

    def _done(self) -> Json:
        return {"type": "transcript.text.done", "text": self._assembler.text(Kind.TEXT), "usage": self._usage()}

    def _usage(self) -> Json:
        n_audio = sum(span.n_tokens for span in self._request.media)
        return Usage.of([(0, self._assembler.finished)]).transcript(n_audio)


def rendered(body: Json, form: str) -> tuple[bytes, str]:
    """Return the bytes of a reply and their media type. `form`: the response format."""
    if form in ("json", "verbose_json"):
        return orjson.dumps(body), "application/json"
    kinds = {"vtt": "text/vtt", "srt": "application/x-subrip"}
    return body["text"].encode(), f"{kinds.get(form, 'text/plain')}; charset=utf-8"


def _deltas(deltas: list[Delta]) -> list[bytes]:
    return [
        event({"type": "transcript.text.delta", "delta": delta.text})
        for delta in deltas
        if delta.item.kind is Kind.TEXT and delta.text
    ]


def _time(seconds: float, point: str) -> str:
    """Return a time such as ``00:01:02,345``."""
    ms = round(1e3 * seconds)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
