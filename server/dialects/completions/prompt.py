"""All forms of ``prompt`` that llama-server accepts (tools/server/server-common.cpp, tokenize_input_prompts).

A prompt is a string, a list of token ids, or a list of strings and token ids; a list of prompts is a batch. An object
``{"prompt_string": text}`` is equivalent to the string. It may have ``multimodal_data``, files in base64: each media
marker (see ``/props``) in the text is replaced by one of them, in order. The model's BOS is added before a prompt that
starts with text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from server.chat.conversation import unsupported_media
from server.chat.prompt import can_show, read_parts, refuse_too_long
from server.dialects.dialect import Context
from server.dialects.fields import json_kind
from server.dialects.generation import ParsedRequest
from server.engine.media import MediaPrompt
from server.errors import InvalidRequest, invalid
from server.media.source import LoadedMedia, Media, MediaUrl
from server.pool.model import LoadedModel
from server.vocab import Vocab

MAX_PROMPTS = 256
FORMS = (
    '"prompt" elements must be a string, a list of tokens, a JSON object containing a prompt string, or a list of '
    "mixed strings & tokens."
)
_NO_MEDIA = "Multimodal data provided, but model does not support multimodal requests."


@dataclass(frozen=True, slots=True)
class UntokenizedPrompt:
    """A prompt before tokenization: a string, or a list of token ids and strings."""

    content: str | list[int | str]
    at: str  # path in the body
    media: tuple[Media, ...] = ()  # of a string
    split: Callable[[str], Sequence[str | Media]] = field(default=lambda _: (), repr=False)
    """Splits the string at the model's media marker into texts and media. Raises `InvalidRequest`."""

    def tokens(self, vocab: Vocab, *, add_special: bool = False, parse_special: bool = False) -> list[int]:
        """Return the tokens of a prompt without media. `add_special`: add the vocabulary's BOS and EOS.

        Raises `InvalidRequest` for a token id outside of the vocabulary.
        """
        if isinstance(self.content, str):
            return vocab.tokenize(self.content, add_special=add_special, parse_special=parse_special)
        tokens: list[int] = []
        for index, entry in enumerate(self.content):
            if isinstance(entry, str):
                first = add_special and index == 0
                tokens += vocab.tokenize(entry, add_special=first, parse_special=parse_special)
            else:
                check_token(vocab, entry, f"{self.at}.{index}")
                tokens.append(entry)
        return tokens

    def read(
        self,
        model: LoadedModel,
        media: LoadedMedia,
        *,
        add_special: bool = True,
        parse_special: bool = True,
        must_fit: bool = False,
    ) -> MediaPrompt:
        """Return the tokens of the prompt and its media. Raises `InvalidRequest`. `must_fit`: see `read_parts`."""
        if not self.media:
            if must_fit:
                texts = [self.content] if isinstance(self.content, str) else self.content
                refuse_too_long((text for text in texts if isinstance(text, str)), model)
            return MediaPrompt(self.tokens(model.vocab, add_special=add_special, parse_special=parse_special))
        supports = can_show(model)
        for medium in self.media:
            if not supports(medium):
                raise invalid(self.at, _NO_MEDIA) if medium.kind == "file" else unsupported_media(medium)
        parts = self.split("" if model.media is None else model.media.marker)
        return read_parts(parts, model, media, add_special=add_special, parse_special=parse_special, must_fit=must_fit)


def read_prompts(value: object) -> list[UntokenizedPrompt]:
    """Return the prompts of the batch, at least one. Raises `InvalidRequest` with a path such as ``prompt.2``."""
    if value is None:
        raise invalid("prompt", '"prompt" is required')
    if not isinstance(value, list) or any(_is_token(entry) for entry in value):
        return [_prompt(value, "prompt")]
    if not value:
        raise invalid("prompt", '"prompt" must not be empty')
    if len(value) > MAX_PROMPTS:
        raise invalid("prompt", f"must have at most {MAX_PROMPTS} prompts")
    return [_prompt(entry, f"prompt.{index}") for index, entry in enumerate(value)]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest(ParsedRequest):
    prompts: list[UntokenizedPrompt]

    @property
    def only_tokenizes(self) -> bool:
        return not self.options.is_constrained

    def tokens(self, context: Context) -> list[MediaPrompt]:
        """Return the tokens of each prompt. Raises `InvalidRequest` for an empty one, and `ContextExceeded`."""
        tokenized = [prompt.read(context.model, context.media, must_fit=True) for prompt in self.prompts]
        for prompt, tokens in zip(self.prompts, tokenized, strict=True):
            if not tokens.tokens:
                raise invalid(prompt.at, "is empty, and the model has no start token")
        return tokenized


def prompt_media(prompts: Sequence[UntokenizedPrompt]) -> tuple[Media, ...]:
    return tuple(medium for prompt in prompts for medium in prompt.media)


def prompt_text(tokens: Sequence[int], model: LoadedModel) -> str:
    """Return the text of a prompt without media, as in llama-server's replies."""
    text = model.vocab.detokenize([token for token in tokens if token >= 0])
    return text.decode("utf-8", "replace")


def read_mixed(value: object, path: str) -> UntokenizedPrompt:
    """Parse a string, or a list of token ids and strings. Raises `InvalidRequest`."""
    if isinstance(value, str):
        return UntokenizedPrompt(value, path)
    if not isinstance(value, list):
        raise invalid(path, f"must be a string or a list of token ids and strings, not {json_kind(value)}")
    for index, entry in enumerate(value):
        if not isinstance(entry, str) and not _is_token(entry):
            raise invalid(f"{path}.{index}", f"must be a token id or a string, not {json_kind(entry)}")
    return UntokenizedPrompt(value, path)


def check_token(vocab: Vocab, token: int, path: str) -> None:
    """Raise `InvalidRequest` for an id outside of the vocabulary, which would crash the native library."""
    if not 0 <= token < vocab.n_tokens:
        raise invalid(path, f"token id {token} is outside of the vocabulary (0 to {vocab.n_tokens - 1})")


def _prompt(value: object, path: str) -> UntokenizedPrompt:
    if isinstance(value, dict):
        return read_object(value, path)
    if not isinstance(value, str | list):
        raise InvalidRequest(FORMS, path)
    if value == []:
        raise invalid(path, "must not be empty")
    return read_mixed(value, path)


def read_object(value: dict[str, Any], path: str) -> UntokenizedPrompt:
    """Parse an object with ``prompt_string`` and optional ``multimodal_data``. Raises `InvalidRequest`."""
    if "prompt_string" not in value:
        raise InvalidRequest(FORMS, f"{path}.prompt_string")
    data, at = value.get("multimodal_data"), f"{path}.multimodal_data"
    if not data:
        return read_mixed(value["prompt_string"], f"{path}.prompt_string")
    text = value["prompt_string"]
    if not isinstance(text, str):
        raise invalid(f"{path}.prompt_string", "must be a string")
    files = [data] if isinstance(data, str) else data
    if not isinstance(files, list):
        raise invalid(at, f"must be a list of files in base64, not {json_kind(data)}")
    for index, file in enumerate(files):
        if not isinstance(file, str):
            raise invalid(f"{at}.{index}", f"must be a file in base64, not {json_kind(file)}")
    media = tuple(Media("file", at=f"{at}.{index}", source=MediaUrl(file)) for index, file in enumerate(files))

    def split(marker: str) -> Sequence[str | Media]:
        pieces = text.split(marker)
        if len(pieces) != len(media) + 1:
            reason = f"it has the marker {marker} {len(pieces) - 1} times, and there are {len(media)} files"
            raise invalid(path, f"Failed to tokenize prompt: {reason}")
        parts: list[str | Media] = [pieces[0]]
        for medium, piece in zip(media, pieces[1:], strict=True):
            parts += (medium, piece)
        return [part for part in parts if part != ""]

    return UntokenizedPrompt(text, path, media, split)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
