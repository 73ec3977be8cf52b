"""``POST /v1/audio/transcriptions``: a form, as a conversation in which a model is asked to write down a sound.

The words that it is asked with are llama-server's (tools/server/server-chat.cpp, convert_transcriptions_to_chatcmpl;
common/chat.cpp, common_chat_get_asr_prompt). Beyond it: every format of OpenAI's, with one segment for all, since such
a model tells no times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.conversation.conversation import Conversation, Media, Message, TextPart, Thinking
from server.conversation.prepare import prepare
from server.errors import InvalidRequest, NotSupported
from server.media.bitmap import bitmaps_of
from server.media.source import Seen
from server.pool.model import LoadedModel
from server.wire.common import Header, random_id
from server.wire.fields import field_error, parse
from server.wire.generation import Generation, GenerationFields, Logprobs, prepared_request
from server.wire.known import Fields
from server.wire.transcriptions.write import FORMATS, TranscriptReply, TranscriptStream
from server.wire.warnings import shown, unknown_fields

ASKED = "Transcribe audio to text"
_LFM2 = ("<|tool_list_start|>", "<|tool_list_end|>")  # what the template of a model of that family has
_LFM2_SYSTEM = "Perform ASR."
_NUMBERS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "max_completion_tokens")
_TRUE, _FALSE = ("true", "1"), ("false", "0", "")
_TIMES = "timestamp_granularities[]"
_WITHOUT_EFFECT = ("chunking_strategy", "include[]", "known_speaker_names[]", "known_speaker_references[]")
_FIELDS = Fields(" ".join((*_NUMBERS, *_WITHOUT_EFFECT, _TIMES, "model prompt language response_format stream")))


@dataclass(frozen=True, slots=True)
class Transcription:
    """A checked form. ``prompt``, ``language``: "" where the client does not say; ``format``: of the reply."""

    sound: Media
    prompt: str
    language: str
    fields: GenerationFields
    format: str
    warnings: tuple[str, ...]


def read_transcription(given: Mapping[str, Sequence[str]], files: Mapping[str, bytes]) -> Transcription:
    """Check what needs no model. Raises `InvalidRequest`."""
    if "file" not in files:
        raise InvalidRequest("file: No input file found for transcription", "file")
    said = {name: values[-1] for name, values in given.items()}
    wanted = said.get("response_format") or "json"
    if wanted not in FORMATS:
        raise field_error("response_format", f"must be one of {', '.join(FORMATS)}, not {shown(wanted)}")
    streams = _switch(said, "stream")
    if streams and wanted not in ("json", "text"):
        raise field_error("stream", f"can't be used with response_format {wanted}")
    if "word" in given.get(_TIMES, ()):
        raise field_error(_TIMES, "models tell no times of words; leave it out")
    fields = parse(GenerationFields, {**_numbers(said), "model": said.get("model") or None, "stream": streams})
    sound = Media("audio", at="file", source=files["file"])
    warnings = [f"{name} is ignored" for name in _WITHOUT_EFFECT if said.get(name)]
    warnings += unknown_fields(said, _FIELDS)
    return Transcription(sound, said.get("prompt", ""), said.get("language", ""), fields, wanted, tuple(warnings))


def transcription(wanted: Transcription, model: LoadedModel, seen: Seen) -> Generation:
    """The request and the writer of its reply; blocking, for a thread. Raises `InvalidRequest`, and `NotSupported` for
    a model that hears nothing."""
    if model.media is None or "audio" not in model.media.kinds:
        raise NotSupported("The current model does not support audio input.")
    sound, *more = (bitmap for found in seen.values() for bitmap in bitmaps_of(found))
    if more or sound.kind != "audio":
        raise InvalidRequest("file: it is no sound", "file")
    header = Header(model.spec.id, f"transcript-{random_id()}")
    logprobs = Logprobs(wanted.format == "verbose_json")
    prepared = prepare(_conversation(wanted, model), model, seen)
    request = prepared_request(prepared, wanted.fields, model, header.id, logprobs)
    n_audio = sum(span.n_tokens for span in request.media)
    parser = prepared.output.parser()
    if wanted.fields.stream:
        return Generation([request], TranscriptStream(parser, n_audio))
    seconds = sound.width / model.media.sample_rate
    reply = TranscriptReply(parser, n_audio, wanted.format, wanted.language, seconds, request.sampling.temperature)
    return Generation([request], reply)


def _conversation(wanted: Transcription, model: LoadedModel) -> Conversation:
    trained_so = all(word in model.template.source for word in _LFM2)
    asked = wanted.prompt or ("" if trained_so else ASKED)
    hint = f" (language: {wanted.language})" if wanted.language else ""
    user = Message("user", (TextPart(asked + hint), wanted.sound) if asked + hint else (wanted.sound,))
    system = (Message("system", _LFM2_SYSTEM),) if trained_so else ()
    return Conversation((*system, user), thinking=Thinking(wanted=False), messages_at="file")


def _numbers(said: Mapping[str, str]) -> dict[str, Any]:
    """In a form everything is text."""
    found: dict[str, Any] = {}
    for name in _NUMBERS:
        if not said.get(name):
            continue
        try:
            found[name] = float(said[name])
        except ValueError:
            raise field_error(name, f"must be a number, not {shown(said[name])}") from None
    return found


def _switch(said: Mapping[str, str], name: str) -> bool:
    value = said.get(name, "").lower()
    if value not in (*_TRUE, *_FALSE):
        raise field_error(name, f"must be true or false, not {shown(value)}")
    return value in _TRUE
