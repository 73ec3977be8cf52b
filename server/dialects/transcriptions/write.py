"""Transcripts in OpenAI's formats; events match llama-server's (server-task.cpp, to_json_oaicompat_asr), which are
OpenAI's.
"""

import zlib
from typing import Any

import orjson

from server.chat.assembler import Assembler, Delta, Kind
from server.dialects.common import DONE, Json, event
from server.engine.request import Event, Finished, Text
from server.formats.parsing.reasoning import OutputParser

FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_UNKNOWN = "unknown"


class TranscriptStream:
    """Pass every event to `feed` and send the result."""

    def __init__(self, parser: OutputParser, n_audio: int) -> None:
        self._said = Assembler(parser)
        self._n_audio = n_audio

    def feed(self, _prompt: int, item: Event) -> list[bytes]:
        """Return the bytes for one event."""
        if isinstance(item, Text):
            return _deltas(self._said.feed(item))
        if isinstance(item, Finished):
            return [*_deltas(self._said.finish(item)), event(_done(self._said, self._n_audio))]
        return []

    def finish(self) -> list[bytes]:
        """The end."""
        return [DONE]


class TranscriptReply:
    """Collects events into one reply: an object, or the text of one (`rendered`)."""

    def __init__(
        self,
        parser: OutputParser,
        n_audio: int,
        form: str,
        task: str,
        language: str,
        seconds: float,
        temperature: float,
    ) -> None:
        self._said = Assembler(parser)
        self._n_audio, self._form, self._task = n_audio, form, task
        self._language, self._seconds, self._temperature = language, seconds, temperature
        self._tokens: list[int] = []
        self._logprobs: list[float] = []

    def feed(self, _prompt: int, item: Event) -> None:
        """Take one event."""
        if isinstance(item, Text):
            self._tokens += item.tokens
            self._logprobs += (token.logprob for token in item.logprobs)
            self._said.feed(item)
        elif isinstance(item, Finished):
            self._said.finish(item)

    def body(self) -> Json:
        """The reply; of formats that are no JSON it has the text alone, under ``text``."""
        text = self._said.said(Kind.TEXT)
        match self._form:
            case "text":
                return {"text": f"{text}\n"}
            case "srt":
                return {"text": f"1\n{_time(0, ',')} --> {_time(self._seconds, ',')}\n{text.strip()}\n\n"}
            case "vtt":
                return {"text": f"WEBVTT\n\n{_time(0, '.')} --> {_time(self._seconds, '.')}\n{text.strip()}\n\n"}
            case "verbose_json":
                return self._verbose(text)
        return _done(self._said, self._n_audio)

    def _verbose(self, text: str) -> Json:
        written = text.encode()
        segment: dict[str, Any] = {
            "id": 0,
            "seek": 0,
            "start": 0.0,
            "end": self._seconds,
            "text": text,
            "tokens": self._tokens,
            "temperature": self._temperature,
            "avg_logprob": sum(self._logprobs) / max(len(self._logprobs), 1),
            "compression_ratio": len(written) / max(len(zlib.compress(written)), 1),
            "no_speech_prob": 0.0,
        }
        return {
            "task": self._task,
            "language": self._language or _UNKNOWN,
            "duration": self._seconds,
            "text": text,
            "segments": [segment],
            "usage": _usage(self._said.finished, self._n_audio),
        }


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


def _done(said: Assembler, n_audio: int) -> Json:
    usage = _usage(said.finished, n_audio)
    return {"type": "transcript.text.done", "text": said.said(Kind.TEXT), "usage": usage}


def _usage(end: Finished, n_audio: int) -> Json:
    """Return llama-server's keys and OpenAI's details."""
    return {
        "type": "tokens",
        "input_tokens": end.n_prompt,
        "output_tokens": end.n_predicted,
        "total_tokens": end.n_prompt + end.n_predicted,
        "input_tokens_details": {"cached_tokens": end.n_cached},
        "input_token_details": {"audio_tokens": n_audio, "text_tokens": end.n_prompt - n_audio},
    }


def _time(seconds: float, point: str) -> str:
    """``00:01:02,345``."""
    ms = round(1e3 * seconds)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
