"""llama-server's ``generation_settings`` (tools/server/server-task.cpp, task_params::to_json): the effective settings
of a request.

A native response has the whole object; /props and /slots have a shorter one, without members that may be long.
"""

import math
from collections.abc import Mapping
from typing import Any

from server.engine.request import Adapters, Request, SamplingParams
from server.vocab import Vocab

_BEFORE_DRY = (
    *("seed", "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma"),
    *("xtc_probability", "xtc_threshold", "typical_p", "repeat_last_n", "repeat_penalty", "presence_penalty"),
    *("frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
)
_BEHIND_DRY = ("mirostat", "mirostat_tau", "mirostat_eta", "adaptive_target", "adaptive_decay")
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
        **{name: getattr(sampling, name) for name in _BEFORE_DRY},
        "dry_sequence_breakers": list(sampling.dry_sequence_breakers),
        **{name: getattr(sampling, name) for name in _BEHIND_DRY},
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
