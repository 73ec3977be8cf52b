"""All forms of ``prompt`` that llama-server accepts (tools/server/server-common.cpp, tokenize_input_prompts).

A text; a list of token ids; a mixed list; or a list of such prompts, which is a batch. An object ``{"prompt_string":
text}`` is equivalent to the text. It may have ``multimodal_data``, files in base64; each media marker (see
``/props``) in the text is replaced by one of them, in order. A prompt that starts with text gets the model's BOS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server.chat.conversation import unseen
from server.chat.prompt import can_show, read_parts
from server.dialects.dialect import ParsedRequest
from server.dialects.fields import json_kind
from server.engine.media import MediaPrompt
from server.errors import InvalidRequest
from server.media.source import Media, MediaUrl, Seen
from server.pool.model import LoadedModel
from server.vocab import Vocab

MAX_PROMPTS = 256
FORMS = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a list of '
    "mixed strings & tokens."
)
_CANNOT = "Multimodal data provided, but model does not support multimodal requests."


@dataclass(frozen=True, slots=True)
class TextWithMedia:
    """A text with media. ``cut``: splits it at the model's marker; raises `InvalidRequest`."""

    text: str
    media: tuple[Media, ...]
    cut: Callable[[str], Sequence[str | Media]]


Mixed = str | list[int | str]
GivenPrompt = Mixed | TextWithMedia


def read_prompts(value: object) -> list[GivenPrompt]:
    """Return the prompts of the batch, at least one. Raises `InvalidRequest` with a path such as ``prompt.2``."""
    if value is None:
        raise InvalidRequest('prompt: "prompt" is required', "prompt")
    if not isinstance(value, list) or any(_is_token(entry) for entry in value):
        return [_prompt(value, "prompt")]
    if not value:
        raise InvalidRequest('prompt: "prompt" must not be empty', "prompt")
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(f"prompt: must have at most {MAX_PROMPTS} prompts", "prompt")
    return [_prompt(entry, f"prompt.{index}") for index, entry in enumerate(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest(ParsedRequest):
    """A request to complete prompts, before a model tokenizes them."""

    prompts: list[GivenPrompt]

    @property
    def paths(self) -> list[str]:
        """Return the path of each prompt in the client's body."""
        n = len(self.prompts)
        return ["prompt"] if n == 1 else [f"prompt.{number}" for number in range(n)]

    def tokens(self, model: LoadedModel, seen: Seen) -> list[MediaPrompt]:
        """Return the tokens of each prompt. Raises `InvalidRequest` for an empty one."""
        found = [read_prompt(prompt, model, seen, path) for prompt, path in zip(self.prompts, self.paths, strict=True)]
        for path, prompt in zip(self.paths, found, strict=True):
            if not prompt.tokens:
                raise InvalidRequest(f"{path}: is empty, and the model has no start token", path)
        return found


def prompt_media(prompts: Sequence[GivenPrompt]) -> tuple[Media, ...]:
    """Return the media of all prompts."""
    return tuple(medium for prompt in prompts if isinstance(prompt, TextWithMedia) for medium in prompt.media)


def read_prompt(
    prompt: GivenPrompt,
    model: LoadedModel,
    seen: Seen,
    path: str,
    *,
    add_special: bool = True,
    parse_special: bool = True,
) -> MediaPrompt:
    """Return the tokens of one prompt. `add_special`: add the vocabulary's BOS and EOS. Raises `InvalidRequest`."""
    if not isinstance(prompt, TextWithMedia):
        tokens = tokenize_mixed(model.vocab, prompt, path, add_special=add_special, parse_special=parse_special)
        return MediaPrompt(tokens)
    if model.media is None:
        named = prompt.media[0]  # a message part has a type
        raise InvalidRequest(f"{path}: {_CANNOT}", path) if named.kind == "file" else unseen(named)
    shown = can_show(model)
    for medium in prompt.media:
        if not shown(medium):
            raise unseen(medium)
    parts = prompt.cut(model.media.marker)
    return read_parts(parts, model, seen, add_special=add_special, parse_special=parse_special)


def prompt_text(tokens: Sequence[int], model: LoadedModel) -> str:
    """Return the prompt's text without media, as llama-server shows it."""
    text = model.vocab.detokenize([token for token in tokens if token >= 0])
    return text.decode("utf-8", "replace")


def tokenize_mixed(vocab: Vocab, prompt: Mixed, path: str, *, add_special: bool, parse_special: bool) -> list[int]:
    """Return the tokens of one prompt. Raises `InvalidRequest` for a token id past the vocabulary."""
    if isinstance(prompt, str):
        return vocab.tokenize(prompt, add_special=add_special, parse_special=parse_special)
    tokens: list[int] = []
    for index, entry in enumerate(prompt):
        if isinstance(entry, str):
            first = add_special and index == 0
            tokens += vocab.tokenize(entry, add_special=first, parse_special=parse_special)
        else:
            check_token(vocab, entry, f"{path}.{index}")
            tokens.append(entry)
    return tokens


def read_mixed(value: object, path: str) -> Mixed:
    """Return a text, or a list of token ids and texts. Raises `InvalidRequest`."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{path}: must be a string or a list of token ids and strings, not {json_kind(value)}", path
        )
    for index, entry in enumerate(value):
        if not isinstance(entry, str) and not _is_token(entry):
            where = f"{path}.{index}"
            raise InvalidRequest(f"{where}: must be a token id or a string, not {json_kind(entry)}", where)
    return value


def check_token(vocab: Vocab, token: int, path: str) -> None:
    """Raise `InvalidRequest` for an id past the vocabulary: the native library would end the process."""
    if not 0 <= token < vocab.n_tokens:
        raise InvalidRequest(f"{path}: token id {token} is outside of the vocabulary (0 to {vocab.n_tokens - 1})", path)


def _prompt(value: object, path: str) -> GivenPrompt:
    if isinstance(value, dict):
        return read_object(value, path)
    if not isinstance(value, str | list):
        raise InvalidRequest(FORMS, path)
    prompt = read_mixed(value, path)
    if prompt == []:
        raise InvalidRequest(f"{path}: must not be empty", path)
    return prompt


def read_object(value: dict[str, Any], path: str) -> GivenPrompt:
    """Return a prompt with its files, if there are any. Raises `InvalidRequest`."""
    if "prompt_string" not in value:
        raise InvalidRequest(FORMS, f"{path}.prompt_string")
    given, where = value.get("multimodal_data"), f"{path}.multimodal_data"
    if not given:
        return read_mixed(value["prompt_string"], f"{path}.prompt_string")
    text = value["prompt_string"]
    if not isinstance(text, str):
        raise InvalidRequest(f"{path}.prompt_string: must be a string", f"{path}.prompt_string")
    files = [given] if isinstance(given, str) else given
    if not isinstance(files, list):
        raise InvalidRequest(f"{where}: must be a list of files in base64, not {json_kind(given)}", where)
    for index, file in enumerate(files):
        if not isinstance(file, str):
            at = f"{where}.{index}"
            raise InvalidRequest(f"{at}: must be a file in base64, not {json_kind(file)}", at)
    media = tuple(Media("file", at=f"{where}.{index}", source=MediaUrl(file)) for index, file in enumerate(files))

    def cut(marker: str) -> Sequence[str | Media]:
        pieces = text.split(marker)
        if len(pieces) != len(media) + 1:
            said = f"it has the marker {marker} {len(pieces) - 1} times, and there are {len(media)} files"
            raise InvalidRequest(f"{path}: Failed to tokenize prompt: {said}", path)
        parts: list[str | Media] = [pieces[0]]
        for medium, piece in zip(media, pieces[1:], strict=True):
            parts += (medium, piece)
        return [part for part in parts if part != ""]

    return TextWithMedia(text, media, cut)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
