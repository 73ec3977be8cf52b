"""Transcripts in OpenAI's formats; events match llama-server's (server-task.cpp, to_json_oaicompat_asr), which are
OpenAI's.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import orjson

from server.chat.assembler import Assembler, Delta, Kind
from server.dialects.common import DONE, Json, event
from server.dialects.dialect import Writer
from server.dialects.usage import Usage
from server.engine.request import Event, Finished, Text
from server.formats.parsing.reasoning import OutputParser

_UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Recording:
    """What a transcript says of its recording. ``form``: the format of the whole reply."""

    n_audio_tokens: int
    form: str
    task: str
    language: str
    seconds: float
    temperature: float


class TranscriptWriter(Writer):
    """Writes a transcript: events, or an object that has the text of other formats (`rendered`)."""

    def __init__(self, parser: OutputParser, recording: Recording) -> None:
        self._said = Assembler(parser)
        self._recording = recording
        self._tokens: list[int] = []
        self._logprobs: list[float] = []

    def feed(self, _prompt: int, item: Event) -> list[bytes]:
        """Return the bytes for one event."""
        if isinstance(item, Text):
            self._tokens += item.tokens
            self._logprobs += (token.logprob for token in item.logprobs)
            return _deltas(self._said.feed(item))
        if isinstance(item, Finished):
            return [*_deltas(self._said.finish(item)), event(self._done())]
        return []

    def finish(self) -> list[bytes]:
        """The end."""
        return [DONE]

    def body(self) -> Json:
        """The reply; of formats that are no JSON it has the text alone, under ``text``."""
        text = self._said.said(Kind.TEXT)
        seconds = self._recording.seconds
        match self._recording.form:
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
        written, recording = text.encode(), self._recording
        segment: dict[str, Any] = {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": recording.seconds,
            "text": text,
            "tokens": self._tokens,
            "temperature": recording.temperature,
            "avg_logprob": sum(self._logprobs) / max(len(self._logprobs), 1),
            "compression_ratio": len(written) / max(len(zlib.compress(written)), 1),
            "no_speech_prob": 0.0,
        }
        return {
            "task": recording.task,
            "language": recording.language or _UNKNOWN,
            "duration": recording.seconds,
            "text": text,
            "segments": [segment],
            "usage": self._usage(),
        }

    def _done(self) -> Json:
        return {"type": "transcript.text.done", "text": self._said.said(Kind.TEXT), "usage": self._usage()}

    def _usage(self) -> Json:
        return Usage.of([(0, self._said.finished)]).transcript(self._recording.n_audio_tokens)


def rendered(body: Json, form: str) -> tuple[bytes, str]:
    """A reply's bytes and their type."""
    if form in ("json", "verbose_json"):
        return orjson.dumps(body), "application/json"
    kinds = {"vtt": "text/vtt", "srt": "application/x-subrip"}
    return body["text"].encode(), f"{kinds.get(form, 'text/plain')}; charset=utf-8"


def _deltas(found: list[Delta]) -> list[bytes]:
    return [
        event({"type": "transcript.text.delta", "delta": delta.text})
        for delta in found
        if delta.item.kind is Kind.TEXT and delta.text
    ]


def _time(seconds: float, point: str) -> str:
    """``00:01:02,345``."""
    ms = round(1e3 * seconds)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
