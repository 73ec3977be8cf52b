"""Prompts with media, over a reader that shows them as text."""

from types import SimpleNamespace
from typing import cast

import pytest

from server.dialects.completions.prompt import prompt_text, read_prompts
from server.dialects.vectors import read_embeddings
from server.errors import InvalidRequest
from server.media.bitmap import Bitmap
from server.media.source import LoadedMedia, MediaUrl
from server.pool.model import LoadedModel
from tests.support.fakes import FakeEmbeddingRunner, FakeReader, FakeVocab
from tests.unit.dialects.builders import make_model

SEEING = make_model(media=FakeReader(FakeVocab(), frozenset({"image"})))
SEEN: LoadedMedia = {MediaUrl("aa"): Bitmap("image", 2, 1, b"", "a"), MediaUrl("bb"): Bitmap("image", 3, 1, b"", "b")}


def shown(prompt: object, *, model: object = SEEING) -> str:
    (read,) = read_prompts(prompt)
    return prompt_text(read.read(model, SEEN).tokens, model)  # type: ignore[arg-type]


def test_one_file_may_come_without_a_list() -> None:
    assert shown({"prompt_string": "a<__media__>", "multimodal_data": "bb"}) == "<s>a(image 3x1)"


def test_parts_that_the_model_can_not_be_shown_are_named() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"url": "aa"}}]
    model = cast(LoadedModel, SimpleNamespace(**vars(SEEING), embedder=FakeEmbeddingRunner()))
    with pytest.raises(InvalidRequest, match=r"^input\.content\.1\.type: audio input"):
        read_embeddings({"input": {"content": parts}}, native=False).job(model, SEEN)
