"""What of a body a reply is made without: named in a header of the reply, and in the log.

Fields of older llama-servers (2023 and 2024) that its present one does not know are taken, whatever they hold; a field
that nobody knows is named, since it may be a misspelt one. What else clients can't help sending (tools that only other
servers have, blocks that no model can be shown) is told by the wire format that skips it.
"""

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

logger = logging.getLogger(__name__)

WARNING_HEADER = "X-Llamapool-Warning"
GONE_SAMPLERS = ("tfs_z", "tfs-z", "tfs")
"""Tail free sampling, which llama.cpp no longer has; older clients name it in every list of samplers."""
NO_TOOL_LEFT = "tool_choice is ignored: no tool is left that could be called"
HINTS = frozenset(
    [
        *(
            "metadata",
            "client_metadata",
            "store",
            "service_tier",
            "speed",
            "billing_policy",
            "inference_geo",
            "prediction",
        ),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_control", "diagnostics"),
        *("user_profile_id", "workspace_id"),
    ]
)
"""For routing, caching, billing and records at OpenAI and Anthropic: clients send them, and no reply is another one."""
_OLDER = frozenset(["tfs_z", "penalize_nl", "system_prompt", "image_data"])
_SHOWN_CHARS = 40
GONE_SAMPLER_CHAR = "f"
_NO_TAIL_FREE = "llama.cpp has no tail free sampling any more"
_MAX_SHOWN = 8
_MAX_SHOWN_CHARS = 200


def warning_headers(
    body: Mapping[str, Any],
    known: Container[str] | None = None,
    *,
    native: bool = False,
    warnings: Iterable[str] = (),
) -> dict[str, str]:
    """The header that names what of a JSON body has no effect; none where all is carried out.

    `known`: the fields that its schema has; None = it may have any. `native`: whether it is llama-server's own
    completion, which has a system prompt and pictures as it had them in 2023. `warnings`: those of the wire format
    itself, of what it left out.
    """
    unknown = () if known is None else unknown_fields(body, known)
    return as_header([*_warnings(body, native), *warnings, *unknown])


def unknown_fields(given: Mapping[str, Any], known: Container[str]) -> list[str]:
    """A sentence for each field that is not `known`, nor one of those that change no reply."""
    names = [name for name, value in given.items() if name not in known and value is not None]
    return [f"{shown(name)} is ignored: it is not known here" for name in names if name not in HINTS | _OLDER]


def as_header(warnings: Iterable[str]) -> dict[str, str]:
    """The header that says these sentences, each once, and which may hold the client's words; the log gets it, too."""
    found = list(dict.fromkeys(warnings))
    if not found:
        return {}
    shown = [_printable(text) for text in found[:_MAX_SHOWN]]
    rest = [f"and {len(found) - _MAX_SHOWN} more"] * (len(found) > _MAX_SHOWN)
    header = "; ".join([*shown, *rest])
    logger.info("a request is answered without all that it holds: %s", header)
    return {WARNING_HEADER: header}


def with_warnings(headers: Mapping[str, str] | None, warnings: Iterable[str]) -> Mapping[str, str] | None:
    """`headers`, with what came out only later, too."""
    later = as_header(warnings)
    if not later:
        return headers
    said = [each[WARNING_HEADER] for each in (headers or {}, later) if WARNING_HEADER in each]
    return {**(headers or {}), WARNING_HEADER: "; ".join(said)}


def _printable(text: str) -> str:
    """As a header may have it: one line of ASCII."""
    cut = text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "..."
    return "".join(char if " " <= char <= "~" else "?" for char in cut)


def _warnings(body: Mapping[str, Any], native: bool) -> Iterator[str]:
    if body.get("tfs_z") not in (None, 1):
        yield f"tfs_z is ignored: {_NO_TAIL_FREE}"
    if _names_tail_free(body.get("samplers")):
        yield f"tfs_z in samplers is ignored: {_NO_TAIL_FREE}"
    if body.get("penalize_nl") is False:
        yield "penalize_nl is ignored: llama.cpp penalizes new lines like any other token"
    if body.get("system_prompt"):
        told = "holds for this request only" if native else "is ignored: send it as part of the prompt"
        yield f"system_prompt {told}"
    if body.get("image_data") and not native:
        yield "image_data is ignored: only /completion takes it"
    elif body.get("image_data") and not isinstance(body.get("prompt"), str):
        yield "image_data is ignored: its places are marked in a prompt that is one text"


def _names_tail_free(samplers: object) -> bool:
    if isinstance(samplers, str):
        return GONE_SAMPLER_CHAR in samplers
    return isinstance(samplers, list) and any(name in GONE_SAMPLERS for name in samplers)


def shown(text: object) -> str:
    """A client's word in quotes, fit for a header."""
    return ascii(str(text)[:_SHOWN_CHARS])


def left_out(what: str, kind: str, number: int) -> str:
    """That so many of a type were skipped, such as tools."""
    return f"{what} of type {shown(kind)} are left out{f' ({number})' if number > 1 else ''}"
