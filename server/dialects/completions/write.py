"""Writes a completion, whole or as a stream of events (llama.cpp server-task.cpp, to_json_oaicompat).

Choices of several prompts are numbered consecutively: choice k of prompt p is ``p * n + k``. In a stream, the last
chunk of each choice has its usage, as in llama-server. With ``stream_options.include_usage``, usage has its own chunk,
as in OpenAI's API.
"""

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

from server.dialects import common as wire
from server.dialects.common import Header, Json
from server.dialects.dialect import Writer
from server.dialects.usage import Usage
from server.engine.media import MediaPrompt
from server.engine.request import Event, Failed, Finished, Progress, PromptLogprobs, Started, Text, TokenLogprob
from server.vocab import Vocab

if TYPE_CHECKING:
    from server.dialects.completions.parse import CompletionRequest

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_MAX_ADDED = 2  # tokens at the start of a prompt that its text may not contain


class TokenLists:
    """OpenAI's lists of a choice's tokens. `offset`: the position of the first token in the text."""

    def __init__(self, offset: int = 0) -> None:
        self.lists: Json = {name: [] for name in _LISTS}
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, text: str, score: TokenLogprob | None, encoded: bytes) -> None:
        """Add a token, written as `text`. `encoded`: its bytes in the text of the choice."""
        self.lists["tokens"].append(text)
        self.lists["token_logprobs"].append(None if score is None else score.logprob)
        self.lists["top_logprobs"].append(None if score is None else _top(text, score))
        self.lists["text_offset"].append(self._offset)
        self._offset += len(self._decoder.decode(encoded))

    def take(self, tokens: Sequence[TokenLogprob]) -> Json:
        """Return lists of only the next tokens."""
        for token in tokens:
            self.add(_token_text(token.piece), token, token.piece)
        lists, self.lists = self.lists, {name: [] for name in _LISTS}
        return lists


class Echo(TokenLists):
    """The prompt, echoed at the start of a choice's text.

    `pieces`: the prompt's tokens if their log probabilities are requested. The first token of a media part, or of a
    slice of one, is the `marker`; its other tokens are empty. Log probabilities of a long prompt arrive in parts.
    """

    def __init__(self, text: str = "", pieces: Sequence[bytes] = (), marker: bytes = b"") -> None:
        super().__init__()
        self.text, self.pieces, self._marker = text, pieces, marker
        self._encoded = text.encode("utf-8", "replace")
        self._at = 0  # the number of bytes of the text before the next token
        self.score([None] * bool(pieces))  # the first token has no log probability

    @property
    def complete(self) -> bool:
        """Return whether all tokens have been added."""
        return len(self.lists["tokens"]) == len(self.pieces)

    def score(self, scores: Sequence[TokenLogprob | None]) -> None:
        """Add the next tokens with their log probabilities, None for media."""
        start = len(self.lists["tokens"])
        for piece, score in zip(self.pieces[start : start + len(scores)], scores, strict=True):
            encoded = self._encoded[self._at : self._at + self._length(piece)]
            self._at += len(encoded)
            self.add("" if piece == self._marker else _token_text(piece), score, encoded)

    def _length(self, piece: bytes) -> int:
        """Return the number of bytes of the text that belong to the next token.

        The text does not contain the BOS or the spaces that the vocabulary adds, or the frames of a video.
        """
        for contained in (piece, piece.removeprefix(b" ")):
            if self._encoded.startswith(contained, self._at):
                return len(contained)
        is_added = len(self.lists["tokens"]) < _MAX_ADDED or self._marker
        return 0 if is_added else len(piece)


def echo(vocab: Vocab, text: str, prompt: MediaPrompt, marker: str = "") -> Echo:
    """Return the echo of a prompt with log probabilities. `text` has a `marker` for each media part."""
    starts, encoded = {span.start for span in prompt.spans}, marker.encode()
    pieces = (
        vocab.piece(token) if token >= 0 else encoded if at in starts else b"" for at, token in enumerate(prompt.tokens)
    )
    return Echo(text, list(pieces), encoded)


def _token_text(piece: bytes) -> str:
    """Return the text of a token. As in OpenAI's API, an incomplete character is ``bytes:\\xe2\\x80``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _top(text: str, token: TokenLogprob) -> dict[str, float]:
    """Return the log probabilities of the top tokens, best first, and of `token`, whose text is `text`, by text.

    Of tokens with equal texts, the most probable one is kept.
    """
    top: dict[str, float] = {}
    for alternative in token.top:
        top.setdefault(_token_text(alternative.piece), alternative.logprob)
    top.setdefault(text, token.logprob)
    return top


@dataclass(slots=True)
class _Choice:
    """The texts and log probabilities of a choice. ``scores``: log probabilities of its tokens, to select the best."""

    prompt: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    end: Finished | None = None

    def mean(self) -> float:
        return fmean(self.scores) if self.scores else -math.inf

    def body(self, index: int, *, logprobs: bool) -> Json:
        """Return the finished choice for a whole reply."""
        assert self.end is not None, f"choice {index} has not finished"
        names = self.logprobs[0] if self.logprobs and logprobs else ()
        joined = {name: [entry for part in self.logprobs for entry in part[name]] for name in names}
        reason = wire.finish_reason(self.end.reason)
        return {"text": "".join(self.texts), "index": index, "logprobs": joined or None, "finish_reason": reason}


class CompletionWriter(Writer):
    """Writes a ``text_completion``.

    In a stream, every choice starts with the echo of its prompt and the prompt's log probabilities. Until these are
    complete, choices are buffered.
    """

    def __init__(self, request: "CompletionRequest", header: Header, echoes: Sequence[Echo]) -> None:
        n = request.options.n_choices
        self._request, self._n, self._echoes = request, n, echoes
        self._choices = [_Choice(prompt) for prompt in range(len(echoes)) for _ in range(n)]
        self._buffered: dict[int, list[Event]] = {p: [] for p, echo in enumerate(echoes) if not echo.complete}
        self._lists = [TokenLists(len(echo.text)) for echo in echoes for _ in range(n)] if request.lists else []
        self._head: Json = {
            "created": header.created,
            "model": header.model,
            "system_fingerprint": wire.FINGERPRINT,
            "object": "text_completion",
            "id": header.id,
        }
        self._after_sampling = bool(request.options.post_sampling_probs)

    def body(self) -> Json:
        choices, best = self._choices, self._request.best
        if best:
            groups = (choices[start : start + self._n] for start in range(0, len(choices), self._n))
            choices = [choice for group in groups for choice in sorted(group, key=_Choice.mean, reverse=True)[:best]]
        bodies = [choice.body(index, logprobs=self._request.shows_logprobs) for index, choice in enumerate(choices)]
        return {"choices": bodies, **self._head, **self._totals()}

    def _totals(self) -> Json:
        ends = [(choice.prompt, choice.end) for choice in self._choices if choice.end is not None]
        return {"usage": Usage.of(ends).openai(), "timings": wire.timings(ends[0][1].timings)}

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        if prompt not in self._buffered or isinstance(event, Progress):
            return self._written(prompt, event)
        if isinstance(event, PromptLogprobs):
            self._echoes[prompt].score(event.tokens)
        else:
            self._buffered[prompt].append(event)
        if not self._echoes[prompt].complete:
            return []
        return [chunk for each in self._buffered.pop(prompt) for chunk in self._written(prompt, each)]

    def _written(self, prompt: int, event: Event) -> list[bytes]:
        assert not isinstance(event, Failed), "the session raises its error"
        index = prompt * self._n + event.index
        match event:
            case Text():
                logprobs = self._logprobs(index, event.logprobs) if event.logprobs else None
                if self._request.best:
                    self._choices[index].scores += (token.logprob for token in event.logprobs)
                return self._delta(index, event.text, logprobs, wire.timed(event.timings))
            case Started():
                echo = self._echoes[prompt]
                logprobs = {"content": [], **echo.lists} if echo.pieces else None
                return self._delta(index, echo.text, logprobs, {})
            case Finished():
                self._choices[index].end = event
                extra: Json = {}
                if not self._request.options.include_usage:
                    extra = {"usage": Usage.of([(prompt, event)]).openai(), "timings": wire.timings(event.timings)}
                return [self._chunk(index, "", None, extra, wire.finish_reason(event.reason))]
            case Progress():
                return [self._chunk(index, "", None, wire.progress(event))]
        return []

    def _delta(self, index: int, text: str, logprobs: Json | None, extra: Json) -> list[bytes]:
        """Return the chunk for more text of a choice; for a whole reply, collect it instead."""
        if not (text or logprobs):
            return []
        if self.streams:
            return [self._chunk(index, text, logprobs, extra)]
        self._choices[index].texts.append(text)
        self._choices[index].logprobs += [logprobs] if logprobs else []
        return []

    def finish(self) -> list[bytes]:
        if not self._request.options.include_usage:
            return [wire.DONE]
        return [wire.event({"choices": [], **self._head, **self._totals()}), wire.DONE]

    def _logprobs(self, choice: int, tokens: Sequence[TokenLogprob]) -> Json | None:
        content = [token for token in tokens if not token.ends]  # unlike llama-server, OpenAI does not list end tokens
        lists = self._lists[choice].take(tokens) if self._lists and tokens else {}
        return {**wire.logprobs(content, after_sampling=self._after_sampling), **lists} if content or lists else None

    def _chunk(self, index: int, text: str, logprobs: Json | None, extra: Json, reason: str | None = None) -> bytes:
        choice = {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
        return wire.event({"choices": [choice], **self._head, **extra})
