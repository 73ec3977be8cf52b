"""Native replies out of engine events, whole or as a stream.

llama.cpp server-task.cpp, to_json_non_oaicompat of final and of partial results. No ``[DONE]`` ends a stream: the last
object of each choice has ``"stop": true``. Different on purpose: a chunk of progress has no tokens, where llama-server
sends ``[0]``.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import orjson

from server.dialects import common as wire
from server.dialects.common import Json
from server.dialects.dialect import Writer
from server.engine.request import Adapters, Event, Finished, Progress, Request, SamplingParams, Text
from server.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Finals:
    """The common members of all choices' last objects; `n` choices per prompt are numbered consecutively."""

    model: str
    n: int
    prompts: Sequence[str]
    settings: Json
    response_fields: Sequence[str] = ()

    @property
    def post_sampling(self) -> bool:
        """Whether probabilities are those after the sampler chain."""
        return bool(self.settings["post_sampling_probs"])

    def index(self, prompt: int, choice: int) -> int:
        """The number of a choice in the reply."""
        return prompt * self.n + choice

    def final(
        self,
        prompt: int,
        end: Finished,
        content: str = "",
        tokens: Sequence[int] = (),
        probabilities: Sequence[orjson.Fragment] = (),
    ) -> Json:
        """The last object of one choice, the reference's keys in its order."""
        shown: Json = {
            "index": self.index(prompt, end.index),
            "content": content,
            "tokens": list(tokens),
            "id_slot": end.id_slot,
            "stop": True,
            "model": self.model,
            "tokens_predicted": end.n_predicted,
            "tokens_evaluated": end.n_prompt,
            "generation_settings": self.settings,
            "prompt": self.prompts[prompt],
            "has_new_line": end.has_new_line,
            "truncated": end.truncated,
            "stop_type": end.reason.value,
            "stopping_word": end.stopping_word,
            "tokens_cached": end.n_tokens,
            "timings": wire.timings(end.timings),
        }
        if probabilities:
            shown["completion_probabilities"] = list(probabilities)
        return picked(shown, self.response_fields) if self.response_fields else shown


def picked(reply: Mapping[str, Any], paths: Sequence[str]) -> Json:
    """Return the fields that `paths` select; ``a/b`` is b of a, under that name. Missing fields are omitted."""
    found: Json = {}
    for path in paths:
        value: Any = reply
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            found[path] = value
    return found


@dataclass(slots=True)
class _Choice:
    prompt: int
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probabilities: list[orjson.Fragment] = field(default_factory=list)
    end: Finished | None = None


class NativeWriter(Writer):
    """Writes a native reply: an object, or an array of them where there are several choices."""

    def __init__(self, finals: Finals, requests: Sequence[Request], *, return_tokens: bool = False) -> None:
        self._finals = finals
        self._requests = requests
        self._return_tokens = return_tokens
        self._n_tokens = Counter[int]()  # by choice
        self._choices = {
            finals.index(p, choice): _Choice(p) for p in range(len(finals.prompts)) for choice in range(finals.n)
        }

    def body(self) -> Json | list[Json]:
        """Return the whole reply, after every choice has finished."""
        found = [self._final(choice) for choice in self._choices.values()]
        return found[0] if len(found) == 1 else found

    def _final(self, choice: _Choice) -> Json:
        assert choice.end is not None, "a choice has not finished"
        tokens = choice.tokens if self._return_tokens else ()
        return self._finals.final(choice.prompt, choice.end, "".join(choice.text), tokens, choice.probabilities)

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        """The chunks that follow from one event of a prompt's request."""
        match event:
            case Text():
                if not self.streams:
                    self._collect(self._choices[self._finals.index(prompt, event.index)], event)
                    return []
                return [self._text(prompt, event)] if event.text or event.tokens else []
            case Finished():
                self._choices[self._finals.index(prompt, event.index)].end = event
                return [wire.event(self._finals.final(prompt, event))]
            case Progress():
                return [self._progress(prompt, event)]
        return []

    def finish(self) -> list[bytes]:
        """Return nothing: each choice has its own last event."""
        return []

    def _collect(self, choice: _Choice, event: Text) -> None:
        choice.text.append(event.text)
        choice.tokens += event.tokens
        # Serialized per token: thousands of alternatives for each, serialized at the end, would stop the event loop.
        written = wire.probabilities(event.logprobs, after_sampling=self._finals.post_sampling)
        choice.probabilities += (orjson.Fragment(orjson.dumps(entry)) for entry in written)

    def _text(self, prompt: int, event: Text) -> bytes:
        extra: Json = {}
        if event.timings is not None:
            extra["timings"] = wire.timings(event.timings)
        if event.logprobs and self._requests[prompt].n_probs > 0:
            after = self._finals.post_sampling
            extra["completion_probabilities"] = wire.probabilities(event.logprobs, after_sampling=after)
        return self._chunk(prompt, event.index, event.text, event.tokens, extra)

    def _progress(self, prompt: int, event: Progress) -> bytes:
        extra = wire.progress(event)
        if not self._requests[prompt].timings_per_token:
            del extra["timings"]
        return self._chunk(prompt, event.index, "", (), extra)

    def _chunk(self, prompt: int, choice: int, text: str, tokens: Sequence[int], extra: Json) -> bytes:
        index = self._finals.index(prompt, choice)
        self._n_tokens[index] += len(tokens)
        return (
            b'data: {"index":%d,"content":%b,"tokens":%b,"stop":false,"id_slot":-1,'
            b'"tokens_predicted":%d,"tokens_evaluated":%d%b}\n\n'
        ) % (
            index,
            orjson.dumps(text),
            orjson.dumps(tokens),
            self._n_tokens[index],
            len(self._requests[prompt].prompt),
            wire.members(extra),
        )


_OTHERS = ("min_keep", "ignore_eos", "logit_bias", "samplers", "backend_sampling")
_NUMBERS = tuple(each.name for each in fields(SamplingParams) if each.name not in _OTHERS)
"""Sampling parameters in llama-server's order, which is that of their fields."""
_LONG = frozenset(
    ("dry_sequence_breakers", "stop", "logit_bias", "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens")
)


def generation_settings(
    sampling: SamplingParams,
    *,
    max_tokens: int = -1,
    request: Request | None = None,
    spec_type: str = "none",
) -> dict[str, Any]:
    """The short object of a request, or of a model's defaults. The reference's keys in its order."""
    shown = request or Request(id="", prompt=[], sampling=sampling, max_tokens=max_tokens)
    return {name: value for name, value in _settings(shown, {"spec_type": spec_type}, ()).items() if name not in _LONG}


def whole_settings(request: Request, vocab: Vocab, *, lora: Adapters, **given: object) -> dict[str, Any]:
    """The whole object: ``grammar`` in the form of its source, `lora` as the client gave it."""
    shown = _settings(request, given, lora)
    never = vocab.eog if request.sampling.ignore_eos else ()
    return shown | {"logit_bias": shown["logit_bias"] + [{"bias": None, "token": token} for token in sorted(never)]}


def _settings(request: Request, given: Mapping[str, Any], lora: Adapters) -> dict[str, Any]:
    sampling = request.sampling
    return {
        **{name: getattr(sampling, name) for name in _NUMBERS},
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "n_predict": request.max_tokens,
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
        "ignore_eos": sampling.ignore_eos,
        "stream": given.get("stream", False),
        "logit_bias": [{"bias": _finite(bias), "token": token} for token, bias in sampling.logit_bias],
        "n_probs": request.n_probs,
        "min_keep": sampling.min_keep,
        "grammar": given.get("grammar", ""),
        "grammar_lazy": given.get("grammar_lazy", False),
        "grammar_triggers": given.get("grammar_triggers", []),
        "preserved_tokens": sorted(request.print_special),
        "chat_format": "Content-only",
        "reasoning_format": given.get("reasoning_format", "none"),
        "reasoning_in_content": given.get("reasoning_format") == "deepseek-legacy" and bool(given.get("stream")),
        "generation_prompt": given.get("generation_prompt", ""),
        "samplers": list(sampling.samplers),
        "speculative.types": given.get("spec_type", "none"),
        "timings_per_token": request.timings_per_token,
        "post_sampling_probs": request.post_sampling_probs,
        "backend_sampling": sampling.backend_sampling,
        "lora": [{"id": id_, "scale": scale} for id_, scale in lora or request.adapters or ()],
    }


def _finite(bias: float) -> float | None:
    """Replace infinity by null, because JSON has none: a forbidden token has null, as in llama-server."""
    return bias if math.isfinite(bias) else None
