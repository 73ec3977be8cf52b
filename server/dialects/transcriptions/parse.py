"""``POST /v1/audio/transcriptions`` and ``/translations``: parses a form to a conversation with one audio part.

The instruction of a transcription is llama-server's (tools/server/server-chat.cpp,
convert_transcriptions_to_chatcmpl; common/chat.cpp, common_chat_get_asr_prompt). Unlike there, ``prompt`` follows
the instruction as a hint, as at OpenAI, and all of OpenAI's formats are supported. They have one segment, because
such models return no timestamps.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from server.chat.conversation import Conversation, Media, Message, ReasoningSettings, TextPart
from server.chat.prepare import prepare
from server.dialects.common import Header, random_id
from server.dialects.dialect import NO_CALLER, Caller, Dialect, Generation, ParsedRequest
from server.dialects.fields import Body, Fraction, Number, SoftCount, field_error, parse
from server.dialects.generation import GenerationFields, Limit, Logprobs, prepared_request
from server.dialects.sampling import Seed
from server.dialects.transcriptions.write import Recording, TranscriptWriter
from server.dialects.warnings import unknown_fields
from server.errors import InvalidRequest, NotSupported
from server.media.bitmap import bitmaps_of
from server.media.source import Seen
from server.pool.model import LoadedModel

Task = Literal["transcribe", "translate"]
_INSTRUCTIONS: Mapping[Task, str] = {
    "transcribe": "Transcribe audio to text",
    "translate": "Translate the speech in the audio into English text",
}
_HINT = "The audio may continue this text or contain its names and terms; spell them in the same way: "
_LFM2 = ("<|tool_list_start|>", "<|tool_list_end|>")  # specific to the templates of that model family
_LFM2_SYSTEM = "Perform ASR."
_TIMES = "timestamp_granularities[]"
_WITHOUT_EFFECT = ("chunking_strategy", "include[]", "known_speaker_names[]", "known_speaker_references[]")


class TranscriptionForm(Body):
    """The fields of a form besides its file; their values are texts."""

    model_config = Body.model_config | {"strict": False}

    model: str | None = None
    prompt: str = ""
    response_format: Literal["json", "text", "verbose_json", "srt", "vtt"] = "json"
    temperature: Number | None = None
    top_p: Fraction | None = None
    top_k: SoftCount | None = None
    min_p: Fraction | None = None
    seed: Seed | None = None
    max_tokens: Limit | None = None
    max_completion_tokens: Limit | None = None
    language: str = ""
    stream: bool = False


_TRANSLATION = TranscriptionForm.model_fields.keys() - {"language", "stream"}
_FIELDS: Mapping[Task, Collection[str]] = {
    "transcribe": (*TranscriptionForm.model_fields, *_WITHOUT_EFFECT, _TIMES),
    "translate": _TRANSLATION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptionRequest(ParsedRequest):
    """A checked form. ``prompt``, ``language``: "" if the client sends none; ``format``: of the reply."""

    task: Task
    prompt: str
    language: str
    format: str

    def generation(self, model: LoadedModel, seen: Seen, caller: Caller = NO_CALLER) -> Generation:
        """Return the engine's request and the writer of its reply. Blocking, for a worker thread.

        Raises `InvalidRequest`, and `NotSupported` for a model without audio input.
        """
        if model.media is None or "audio" not in model.media.kinds:
            raise NotSupported("The current model does not support audio input.")
        audio, *more = (bitmap for found in seen.values() for bitmap in bitmaps_of(found))
        if more or audio.kind != "audio":
            raise InvalidRequest("file: is not an audio file", "file")
        header = Header(model.spec.id, f"transcript-{random_id()}")
        logprobs = Logprobs(self.format == "verbose_json")
        prepared = prepare(_conversation(self, model), model, seen)
        request = prepared_request(prepared, self.options, model, header.id, logprobs, caller=caller)
        recording = Recording(
            n_audio_tokens=sum(span.n_tokens for span in request.media),
            form=self.format,
            task=self.task,
            language="english" if self.task == "translate" else self.language,
            seconds=audio.width / model.media.sample_rate,
            temperature=request.sampling.temperature,
        )
        return Generation([request], TranscriptWriter(prepared.output.parser(), recording))


def parse_transcription(
    given: Mapping[str, Sequence[str]], files: Mapping[str, bytes], task: Task = "transcribe"
) -> TranscriptionRequest:
    """Validate the fields that don't depend on a model. Raises `InvalidRequest`."""
    if "file" not in files:
        raise InvalidRequest("file: No input file found for transcription", "file")
    said = {name: values[-1] for name, values in given.items()}
    warnings = unknown_fields(said, _FIELDS[task])
    form = parse(TranscriptionForm, {name: text for name, text in said.items() if name in _FIELDS[task] and text})
    if form.stream and form.response_format not in ("json", "text"):
        raise field_error("stream", f"can't be used with response_format {form.response_format}")
    if "word" in given.get(_TIMES, ()):
        raise field_error(_TIMES, "models tell no times of words; leave it out")
    options = {name: value for name, value in form if name in GenerationFields.model_fields}
    warnings = [*(f"{name} is ignored" for name in _WITHOUT_EFFECT if said.get(name)), *warnings]
    return TranscriptionRequest(
        options=GenerationFields.model_construct(**options),
        media=[Media("audio", at="file", source=files["file"])],
        warnings=warnings,
        task=task,
        prompt=form.prompt,
        language=form.language,
        format=form.response_format,
    )


def _conversation(wanted: TranscriptionRequest, model: LoadedModel) -> Conversation:
    is_lfm2 = wanted.task == "transcribe" and all(word in model.template.source for word in _LFM2)
    text = "" if is_lfm2 else _INSTRUCTIONS[wanted.task]
    text += f" (language: {wanted.language})" if wanted.language else ""
    text = "\n".join(filter(None, [text, f"{_HINT}{wanted.prompt}" if wanted.prompt else ""]))
    user = Message("user", (TextPart(text), *wanted.media) if text else tuple(wanted.media))
    system = (Message("system", _LFM2_SYSTEM),) if is_lfm2 else ()
    return Conversation((*system, user), thinking=ReasoningSettings(wanted=False), messages_at="file")


TRANSCRIPTIONS = Dialect(parse_transcription)
