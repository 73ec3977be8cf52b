"""Writes native replies, whole or as a stream, also as a part of the replies of other dialects (``verbose``).

The format is llama-server's (server-task.cpp, to_json_non_oaicompat of final and partial results). No ``[DONE]`` ends a
stream: the last object of each choice has ``"stop": true``. One difference is intended: a progress chunk has no tokens,
where llama-server sends ``[0]``.

A verbose object has the raw text with its markup, the rendered prompt and the effective settings. It is a member of a
whole reply, and of the last event of each choice of a stream, where its text is empty.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

import orjson

from server.dialects import common as wire
from server.dialects.adapters import pairs
from server.dialects.common import Json
from server.dialects.completions.prompt import prompt_text
from server.dialects.dialect import Context, Generation, Writer
from server.dialects.generation import GenerationFields
from server.engine.request import (
    RANDOM_SEED,
    Adapters,
    Event,
    Failed,
    Finished,
    Progress,
    Request,
    SamplingParams,
    Text,
)
from server.pool.model import LoadedModel
from server.structured.response_format import ResponseFormat

_LLGUIDANCE = "%llguidance {{}}\nstart: %json {}"


def selected_fields(reply: Mapping[str, Any], paths: Sequence[str]) -> Json:
    """Return the fields that `paths` select. ``a/b`` is the member b of a. Missing fields are skipped."""
    selected: Json = {}
    for path in paths:
        value: Any = reply
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            selected[path] = value
    return selected


@dataclass(slots=True)
class _Choice:
    prompt: int
    n_tokens: int = 0
    text: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probabilities: list[orjson.Fragment] = field(default_factory=list)
    end: Finished | None = None


def grammar_text(response_format: ResponseFormat | None) -> str:
    """Return the text of a grammar. A schema is written for llguidance, as by a llama-server that is built with
    llguidance; other formats are "".
    """
    if response_format is None or response_format.kind in ("regex", "choice"):
        return ""
    value = response_format.value
    return _LLGUIDANCE.format(orjson.dumps(value).decode()) if response_format.kind == "schema" else str(value)


class NativeWriter(Writer):
    """Writes a native reply: an object, or an array of objects if there are several choices.

    `settings`: members of ``generation_settings`` in addition to the `fields` that all dialects share, as
    ``grammar=grammar_text(...)``. Their ``lora`` is the client's value.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        model: LoadedModel,
        fields: GenerationFields,
        response_fields: Sequence[str] = (),
        **settings: object,
    ) -> None:
        self._requests, self._response_fields = requests, response_fields
        shown = {"stream": bool(fields.stream), "spec_type": model.spec.engine.asked_spec_type, **settings}
        reasoning_format = getattr(fields, "reasoning_format", None) or model.spec.chat.reasoning_format
        shown["reasoning_format"] = "deepseek" if reasoning_format == "auto" else reasoning_format
        self._settings = _settings(requests[0], shown, pairs(fields.lora))
        ignored = model.vocab.eog if requests[0].sampling.ignore_eos else ()
        self._settings["logit_bias"] += [{"bias": None, "token": token} for token in sorted(ignored)]
        self._model = model.spec.id
        self._return_tokens = bool(fields.return_tokens)
        self._prompts = [prompt_text(request.prompt, model) for request in requests]
        self._choices = [_Choice(prompt) for prompt, request in enumerate(requests) for _ in range(request.n)]

    def body(self) -> Json | list[Json]:
        objects = []
        for choice in self._choices:
            assert choice.end is not None, "a choice has not finished"
            objects.append(self.final(choice.prompt, choice.end, choice))
        return objects[0] if len(objects) == 1 else objects

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        assert not isinstance(event, Failed), "the session raises its error"
        request, index = self._requests[prompt], self._index(prompt, event.index)
        choice = self._choices[index]
        match event:
            case Text():
                choice.n_tokens += len(event.tokens)
                probabilities = wire.probabilities(event.logprobs, after_sampling=request.post_sampling_probs)
                if self.streams:
                    members = {"completion_probabilities": probabilities} if probabilities else {}
                    extra = wire.timed(event.timings) | members
                    chunk = self._chunk(index, event.text, event.tokens, extra)
                    return [chunk] if event.text or event.tokens else []
                choice.text.append(event.text)
                choice.tokens += event.tokens
                # Serialized for each token, because thousands of alternatives would block the event loop at the end.
                choice.probabilities += (orjson.Fragment(orjson.dumps(entry)) for entry in probabilities)
            case Finished():
                choice.end = event
                return [wire.event(self.final(prompt, event))] if self.streams else []
            case Progress():
                extra = wire.progress(event)
                if not request.timings_per_token:
                    del extra["timings"]
                return [self._chunk(index, "", (), extra)]
        return []

    def final(self, prompt: int, end: Finished, whole: _Choice | None = None) -> Json:
        """Return the last object of a choice, with llama-server's keys in its order. `whole`: the choice with its text
        and tokens, None in a stream.
        """
        settings, seed = self._settings, self._requests[prompt].sampling.seed
        if end.index and seed != RANDOM_SEED:
            settings = {**settings, "seed": (seed + end.index) % RANDOM_SEED}
        written: Json = {
            "index": self._index(prompt, end.index),
            "content": "" if whole is None else "".join(whole.text),
            "tokens": whole.tokens if whole is not None and self._return_tokens else [],
            "id_slot": end.id_slot,
            "stop": True,
            "model": self._model,
            "tokens_predicted": end.n_predicted,
            "tokens_evaluated": end.n_prompt,
            "generation_settings": settings,
            "prompt": self._prompts[prompt],
            "has_new_line": end.has_new_line,
            "truncated": end.truncated,
            "stop_type": end.reason.value,
            "stopping_word": end.stopping_word,
            "tokens_cached": end.n_tokens,
            "timings": wire.timings(end.timings),
        }
        if whole is not None and whole.probabilities:
            written["completion_probabilities"] = whole.probabilities
        return selected_fields(written, self._response_fields) if self._response_fields else written

    def _index(self, prompt: int, choice: int) -> int:
        """Return the index of a choice in the reply, where choices of several prompts are numbered consecutively."""
        return prompt * self._requests[0].n + choice

    def _chunk(self, index: int, text: str, tokens: Sequence[int], extra: Json) -> bytes:
        choice = self._choices[index]
        return wire.event(
            {
                "index": index,
                "content": text,
                "tokens": tokens,
                "stop": False,
                "id_slot": -1,
                "tokens_predicted": choice.n_tokens,
                "tokens_evaluated": len(self._requests[choice.prompt].prompt),
                **extra,
            }
        )


_LATER = ("min_keep", "ignore_eos", "logit_bias", "samplers", "backend_sampling")
_FIRST = tuple(each.name for each in fields(SamplingParams) if each.name not in _LATER)
"""Sampling parameters that are listed first, in the order of llama-server and of `SamplingParams`."""
_LONG = frozenset(
    ("dry_sequence_breakers", "stop", "logit_bias", "grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens")
)


def generation_settings(request: Request, spec_type: str = "none") -> dict[str, Any]:
    """Return the settings of a request without long members, with llama-server's keys in its order."""
    settings = _settings(request, {"spec_type": spec_type}, ())
    return {name: value for name, value in settings.items() if name not in _LONG}


def _settings(request: Request, given: Mapping[str, Any], lora: Adapters) -> dict[str, Any]:
    sampling = request.sampling
    return {
        **{name: getattr(sampling, name) for name in _FIRST},
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        "stop": list(request.stop),
        "max_tokens": request.max_tokens,
        "n_predict": request.max_tokens,
        "n_keep": request.n_keep,
        "n_discard": request.n_discard,
        "ignore_eos": sampling.ignore_eos,
        "stream": given.get("stream", False),
        "logit_bias": [  # null for a banned token, as in llama-server, because JSON has no infinity
            {"bias": bias if math.isfinite(bias) else None, "token": token} for token, bias in sampling.logit_bias
        ],
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


KEY = "__verbose"


def verbose(
    generation: Generation,
    fields: GenerationFields,
    context: Context,
    response_format: ResponseFormat | None,
    generation_prompt: str = "",
) -> Generation:
    """Return a generation whose reply is verbose if the request or, by default, the server enables it.

    `response_format`: the one that applies. `generation_prompt`: the end of a chat prompt, which opens the assistant
    turn.
    """
    if not (context.verbose if fields.verbose is None else fields.verbose):
        return generation
    settings = {"grammar": grammar_text(response_format), "generation_prompt": generation_prompt}
    native = NativeWriter(generation.requests, context.model, fields, **settings)
    return replace(generation, writer=_VerboseWriter(generation.writer, native))


@dataclass
class _VerboseWriter(Writer):
    """Adds the native object of the first choice to a whole reply, and of each choice to its end in a stream."""

    inner: Writer
    native: NativeWriter

    def feed(self, prompt: int, event: Event) -> list[bytes]:
        self.inner.streams = self.native.streams = self.streams
        self.native.feed(prompt, event)
        chunks = self.inner.feed(prompt, event)
        if not (isinstance(event, Finished) and chunks and self.streams):
            return chunks
        return [wire.extended(chunks[0], {KEY: self.native.final(prompt, event)}), *chunks[1:]]

    def finish(self) -> list[bytes]:
        return self.inner.finish()

    def body(self) -> Json | list[Json]:
        native = self.native.body()
        return {**cast(Json, self.inner.body()), KEY: native[0] if isinstance(native, list) else native}
