"""Fields of a body without effect: listed in a response header and in the log.

Fields of older llama-servers (2023 and 2024) are accepted with any value. An unknown field is listed by its path,
because it may be a typo (`server.dialects.known`). Each dialect reports what else it omits, such as tools of other
servers.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from server.dialects.known import Known, has_unknown, unknown_paths

logger = logging.getLogger(__name__)

WARNING_HEADER = "X-Llamapool-Warning"
GONE_SAMPLERS = ("tfs_z", "tfs-z", "tfs")
"""Tail free sampling, which llama.cpp no longer has; older clients name it in every list of samplers."""
NO_TOOL_LEFT = "tool_choice is ignored: no tool is left that could be called"
FOREIGN_REASONING = "{} is ignored: another server or an earlier key encrypted the reasoning in it"
_SHOWN_CHARS = 40
GONE_SAMPLER_CHAR = "f"
_NO_TAIL_FREE = "llama.cpp has no tail free sampling any more"
_MAX_SHOWN = 8
_MAX_SHOWN_CHARS = 200
_MAX_PATH_CHARS = 100
_SIMILAR = 0.75
"""How similar a known name must be to an unknown one to be suggested, from 0 to 1 (difflib's ratio)."""


def unused_fields(body: Mapping[str, Any], known: Known, own: Iterable[str] = (), *, native: bool = False) -> list[str]:
    """Return a sentence for each of a JSON body's fields without effect.

    `known`: the dialect's fields. `own`: the dialect's own sentences. `native`: whether the body is that of
    llama-server's own completion, which had a system prompt and images in 2023.
    """
    return [*_warnings(body, native), *own, *unknown_fields(body, known)]


def unknown_fields(given: Mapping[str, Any], known: Known) -> list[str]:
    """Return a sentence for each field of `given`, at any depth, that is unknown and might have changed the reply."""
    if not has_unknown(given, known):
        return []
    found: list[str] = []
    for path, name, fields in unknown_paths(given, known):
        like = get_close_matches(name[:_SHOWN_CHARS], fields.names, 1, _SIMILAR) if len(found) < _MAX_SHOWN else []
        hint = f" (did you mean {like[0]!r}?)" if like else ""
        found.append(f"{path[:_MAX_PATH_CHARS]!a} is ignored: unknown field{hint}")
    return found


def as_header(warnings: Iterable[str]) -> dict[str, str]:
    """Return the header with these sentences, each once, and log it. Sentences may contain text of the client."""
    found = list(dict.fromkeys(warnings))
    if not found:
        return {}
    shown = [_printable(text) for text in found[:_MAX_SHOWN]]
    rest = [f"and {len(found) - _MAX_SHOWN} more"] * (len(found) > _MAX_SHOWN)
    header = "; ".join([*shown, *rest])
    logger.info("a request is answered without all that it holds: %s", header)
    return {WARNING_HEADER: header}


def _printable(text: str) -> str:
    """Return `text` as one line of ASCII, shortened."""
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
    if native and body.get("response_format"):
        yield "response_format is ignored: send json_schema or grammar, as to llama-server"
    if native and body.get("image_data") and not isinstance(body.get("prompt"), str):
        yield "image_data is ignored: its places are marked in a prompt that is one text"


def _names_tail_free(samplers: object) -> bool:
    if isinstance(samplers, str):
        return GONE_SAMPLER_CHAR in samplers
    return isinstance(samplers, list) and any(name in GONE_SAMPLERS for name in samplers)


def shown(text: object) -> str:
    """Return a client's text in quotes, in ASCII and at most 40 characters, fit for a header."""
    return ascii(str(text)[:_SHOWN_CHARS])


def left_out(what: str, kind: str, number: int) -> str:
    """Return the warning that `number` objects of a type, such as tools, were omitted."""
    return f"{what} of type {shown(kind)} are left out{f' ({number})' if number > 1 else ''}"
