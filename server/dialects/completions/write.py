"""A completion response as one object or as a stream of events (llama.cpp server-task.cpp, to_json_oaicompat).

Choices of several prompts are numbered consecutively: choice k of prompt p is ``p * n + k``. In a stream,
llama-server puts usage into the last chunk of each choice; with ``stream_options.include_usage`` it has its own
chunk instead, as at OpenAI.
"""

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import orjson

from server.dialects import common as wire
from server.dialects.common import Header, Json
from server.dialects.dialect import Writer
from server.dialects.usage import Usage
from server.engine.media import MediaPrompt
from server.engine.request import Event, Finished, Progress, PromptLogprobs, Started, Text, TokenLogprob
from server.vocab import Vocab

_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_MAYBE_ADDED = 2  # tokens at the prompt's start that its text may lack


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt at the start of a choice's text.

    ``pieces``: the prompt's tokens if their log probabilities are requested. The first token of a media part, or a
    slice of one, is its ``marker``, and the others are empty.
    """

    text: str = ""
    pieces: tuple[bytes, ...] = ()
    marker: bytes = b""


class PromptLists:
    """The lists of an echoed prompt. They grow with the prompt's log probabilities, step by step for a long prompt."""

    def __init__(self, echo: Echo) -> None:
        self._pieces, self._marker = echo.pieces, echo.marker
        self._encoded = echo.text.encode("utf-8", "replace")
        self._at = 0  # the bytes of the text that tokens have taken
        self._n_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lists: Json = {name: [] for name in _LISTS}
        if echo.pieces:
            self._add(echo.pieces[0], None)

    @property
    def wanted(self) -> bool:
        """Whether there are any."""
        return bool(self._pieces)

    @property
    def complete(self) -> bool:
        """Whether every token is there."""
        return len(self._lists["tokens"]) == len(self._pieces)

    def add(self, scores: Sequence[TokenLogprob | None]) -> None:
        """The log probabilities of the next tokens; the first one has none, and no medium's."""
        start = len(self._lists["tokens"])
        for piece, score in zip(self._pieces[start : start + len(scores)], scores, strict=True):
            self._add(piece, score)

    def followed_by(self, lists: Json | None = None) -> Json:
        """Return the prompt's lists followed by the choice's."""
        if lists is None:
            return self._lists
        return {name: values + lists[name] for name, values in self._lists.items()} if self._pieces else lists

    def _add(self, piece: bytes, score: TokenLogprob | None) -> None:
        text = "" if piece == self._marker else _shown(piece)
        lists = self._lists
        lists["tokens"].append(text)
        lists["token_logprobs"].append(None if score is None else score.logprob)
        lists["top_logprobs"].append(None if score is None else _top(text, score))
        lists["text_offset"].append(self._n_chars)
        taken = self._encoded[self._at : self._at + self._length(piece)]
        self._at += len(taken)
        self._n_chars += len(self._decoder.decode(taken))

    def _length(self, piece: bytes) -> int:
        """Return how many bytes of the text belong to this token. The text lacks what the vocabulary adds (a first
        token, a space) and the frames of a video.
        """
        is_sure = len(self._lists["tokens"]) > _MAYBE_ADDED and not self._marker
        if is_sure or self._encoded.startswith(piece, self._at):
            return len(piece)
        bare = piece.removeprefix(b" ")
        return len(bare) if self._encoded.startswith(bare, self._at) else 0


def echo(vocab: Vocab, text: str, prompt: MediaPrompt, marker: str = "") -> Echo:
    """Return the echo of a prompt with log probabilities. `text` has a `marker` for each medium."""
    starts, encoded = {span.start for span in prompt.spans}, marker.encode()
    pieces = (
        vocab.piece(token) if token >= 0 else encoded if at in starts else b"" for at, token in enumerate(prompt.tokens)
    )
    return Echo(text, tuple(pieces), encoded)


class TokenLists:
    """The lists of one choice's generated tokens, in parts; ``offset``: where its first token's text begins."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def of(self, tokens: Sequence[TokenLogprob]) -> Json:
        """Return the lists for the next tokens."""
        texts = [_shown(token.piece) for token in tokens]
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(token.piece))
        return {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": list(map(_top, texts, tokens)),
            "text_offset": offsets,
        }


def _shown(piece: bytes) -> str:
    """Return the token as OpenAI writes it: an incomplete character is ``bytes:\\xe2\\x80``."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _top(text: str, token: TokenLogprob) -> dict[str, float]:
    """Return the top tokens, best first, and `token` itself, whose text is `text`. Among equal texts, keep the most
    likely.
    """
    top: dict[str, float] = {}
    for alternative in token.top:
        top.setdefault(_shown(alternative.piece), alternative.logprob)
    top.setdefault(text, token.logprob)
    return top


@dataclass(slots=True)
class _Choice:
    """The fold of a choice's deltas. ``scores``: log probabilities of its tokens, for ``best``."""

    prompt: int
    text: list[str]
    logprobs: list[Json] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    end: Finished | None = None


@dataclass(frozen=True, slots=True)
class CompletionForm:
    """What a completion's reply contains.

    ``n`` choices per prompt are generated. A whole reply has the ``best`` of them, by the mean of their tokens' log
    probabilities, or all if it is 0. ``logprobs``: whether a whole reply has log probabilities; ``lists``: also in
    OpenAI's lists; ``after_sampling``: those after the samplers.
    """

    n: int = 1
    best: int = 0
    logprobs: bool = True
    lists: bool = False
    after_sampling: bool = False
    include_usage: bool = False


class CompletionWriter(Writer):
    """Writes a ``text_completion``.

    In a stream, the log probabilities of a prompt are sent with its echo at the start of every choice. A choice that
    starts before they are complete is buffered until then.
    """

    def __init__(self, header: Header, echoes: Sequence[Echo], form: CompletionForm) -> None:
        n = form.n
        self._form, self._n, self._echoes = form, n, echoes
        self._prompts = [PromptLists(echo) for echo in echoes]
        self._choices = {p * n + k: _Choice(p, [echo.text]) for p, echo in enumerate(echoes) for k in range(n)}
        self._held: dict[int, list[Event]] = {p: [] for p, lists in enumerate(self._prompts) if not lists.complete}
        self._lists = [TokenLists(len(echo.text)) for echo in echoes for _ in range(n)] if form.lists else []
        self._ends: list[tuple[int, Finished]] = []
        self._head: Json = {
            "created": header.created,
            "model": header.model,
            "system_fingerprint": wire.FINGERPRINT,
            "object": "text_completion",
        }
        self._id = header.id
        self._common = wire.members({**self._head, "id": header.id})

    def body(self) -> Json:
        """Return the whole reply, after every choice has finished."""
        ends: list[tuple[int, Finished]] = []
        for index, choice in self._choices.items():
            assert choice.end is not None, f"choice {index} has not finished"
            ends.append((choice.prompt, choice.end))
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._kept())]
        return {
            "choices": choices,
            **self._head,
            "usage": Usage.of(ends).openai(),
            "id": self._id,
            "timings": wire.timings(ends[0][1].timings),
        }

    def _kept(self) -> list[_Choice]:
        """The choices of the reply, in its order."""
        every = list(self._choices.values())
        if not self._form.best:
            return every
        groups = (every[start : start + self._n] for start in range(0, len(every), self._n))
        return [
            choice for group in groups for choice in sorted(group, key=_mean_logprob, reverse=True)[: self._form.best]
        ]

    def _whole_choice(self, index: int, choice: _Choice) -> Json:
        assert choice.end is not None
        return {
            "text": "".join(choice.text),
            "index": index,
            "logprobs": self._shown_logprobs(choice),
            "finish_reason": wire.finish_reason(choice.end.reason),
        }

    def _shown_logprobs(self, choice: _Choice) -> Json | None:
        prompt = self._prompts[choice.prompt]
        content, *lists = (
            [entry for delta in choice.logprobs for entry in delta.get(name, ())] for name in ("content", *_LISTS)
        )
        if not self._form.logprobs or not (content or prompt.wanted):
            return None
        generated = dict(zip(_LISTS, lists, strict=True))
        return {"content": content, **(prompt.followed_by(generated) if self._form.lists else {})}

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        """The chunks that follow from one event of a prompt's request."""
        if prompt not in self._held or isinstance(event, Progress):
            return self._written(prompt, event)
        if isinstance(event, PromptLogprobs):
            self._prompts[prompt].add(event.tokens)
        else:
            self._held[prompt].append(event)
        if not self._prompts[prompt].complete:
            return []
        return [chunk for one in self._held.pop(prompt) for chunk in self._written(prompt, one)]

    def _written(self, prompt: int, event: Event) -> list[bytes]:
        match event:
            case Text(text=text, timings=timings):
                index = prompt * self._n + event.index
                logprobs = self._shown(index, event.logprobs)
                if not self.streams:
                    choice = self._choices[index]
                    choice.text.append(text)
                    choice.logprobs += [logprobs] if logprobs else []
                    choice.scores += (token.logprob for token in event.logprobs)
                    return []
                if not text and logprobs is None:
                    return []
                extra = wire.members({"timings": wire.timings(timings)}) if timings else b""
                return [self._chunk(prompt, event.index, text, logprobs, extra=extra)]
            case Started(index=index):
                echo = self._echoes[prompt]
                logprobs = {"content": [], **self._prompts[prompt].followed_by()} if echo.pieces else None
                return [self._chunk(prompt, index, echo.text, logprobs)] if echo.text or logprobs else []
            case Finished():
                return [self._last(prompt, event)]
            case Progress():
                return [self._chunk(prompt, event.index, "", extra=wire.members(wire.progress(event)))]
        return []

    def finish(self) -> list[bytes]:
        """The last events of the stream, after every choice has finished."""
        if not self._form.include_usage:
            return [wire.DONE]
        extra: Json = {"usage": Usage.of(self._ends).openai(), "timings": wire.timings(self._ends[0][1].timings)}
        return [b'data: {"choices":[]' + self._common + wire.members(extra) + b"}\n\n", wire.DONE]

    def _last(self, prompt: int, end: Finished) -> bytes:
        self._ends.append((prompt, end))
        self._choices[prompt * self._n + end.index].end = end
        extra: Json = {}
        if not self._form.include_usage:
            extra = {"usage": Usage.of([(prompt, end)]).openai(), "timings": wire.timings(end.timings)}
        reason = b'"%b"' % wire.finish_reason(end.reason).encode()
        return self._chunk(prompt, end.index, "", reason=reason, extra=wire.members(extra))

    def _shown(self, choice: int, tokens: Sequence[TokenLogprob]) -> Json | None:
        shown = [token for token in tokens if not token.ends]  # which llama-server lists and OpenAI does not
        lists = self._lists[choice].of(tokens) if self._lists and tokens else {}
        return {**wire.logprobs(shown, after_sampling=self._form.after_sampling), **lists} if shown or lists else None

    def _chunk(
        self,
        prompt: int,
        index: int,
        text: str,
        logprobs: Json | None = None,
        *,
        reason: bytes = b"null",
        extra: bytes = b"",
    ) -> bytes:
        return b'data: {"choices":[{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}]%b%b}\n\n' % (
            orjson.dumps(text),
            prompt * self._n + index,
            orjson.dumps(logprobs),
            reason,
            self._common,
            extra,
        )


def _mean_logprob(choice: _Choice) -> float:
    return fmean(choice.scores) if choice.scores else -math.inf
