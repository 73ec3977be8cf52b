"""Common fields of Ollama's API: durations, and options without effect."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from server.dialects.fields import MAX_MAGNITUDE

_UNITS_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)"
_DURATION = re.compile(rf"[-+]?(?:{_PART})+", re.ASCII)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?", re.ASCII)
_MAX_CHARS = 64
FOR_EVER = -1.0
MAX_S = 1e3 * MAX_MAGNITUDE  # longer is for ever

OLDER_OPTIONS = ("penalize_newline", "tfs_z")
LOAD_OPTIONS = (
    *("num_ctx", "num_batch", "num_gpu", "main_gpu", "use_mmap", "use_mlock", "num_thread", "numa", "low_vram"),
    *("f16_kv", "logits_all", "vocab_only", "embedding_only", "draft_num_predict", "num_gqa", "rope_frequency_base"),
    "rope_frequency_scale",
)
"""Options that Ollama loads a model with; here the settings do, once for all clients."""


def _seconds(given: object) -> object:
    """Seconds out of a number, or of Go's ``1h30m``; below 0 is for ever, as in Ollama."""
    seconds = given
    if isinstance(given, str):
        seconds = _parsed(given)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise ValueError('must be a number of seconds, or a duration such as "5m"')
    return FOR_EVER if seconds < 0 or seconds > MAX_S else float(seconds)


def _parsed(text: str) -> float | None:
    if len(text) > _MAX_CHARS:
        return None
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DURATION.fullmatch(text):
        return None
    total = sum(float(number) * _UNITS_S[unit] for number, unit in re.findall(_PART, text, re.ASCII))
    return -total if text.startswith("-") else total


def _unused(body: Mapping[str, Any], options: Mapping[str, Any]) -> Iterator[str]:
    if body.get("shift") is not None:
        yield "shift: is the model's setting context_shift"
    if body.get("truncate") is True and "input" not in body:
        yield "truncate: no message is left out, a prompt that does not fit is an error"
    if options.get("penalize_newline") is False:
        yield "options penalize_newline: llama.cpp penalizes new lines like any other token"
    if options.get("tfs_z") not in (None, 1):
        yield "options tfs_z: llama.cpp has no tail free sampling any more"


KeepAlive = Annotated[
    float,
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}], "examples": ["5m", 0, -1]}),
]
"""Seconds that the model stays loaded after the request; negative = forever."""


def without_effect(body: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each option that Ollama has and this server does not use."""
    options = body.get("options")
    given = {name: value for name, value in options.items() if value is not None} if isinstance(options, dict) else {}
    found = list(_unused(body, given))
    loading = [name for name in given if name in LOAD_OPTIONS]
    if loading:
        found.append(f"options {', '.join(loading)}: are set where the server's models are configured")
    return found
