"""Prompts with media, over a reader that shows them as text."""

import pytest

from server.dialects.completions.prompt import prompt_media, prompt_text, read_prompt, read_prompts
from server.dialects.vectors.embeddings import read_embeddings
from server.errors import InvalidRequest
from server.media.bitmap import Bitmap, Video
from server.media.source import MediaUrl, Seen
from tests.support.fakes import FakeReader, FakeVocab
from tests.unit.dialects.builders import make_model

SEEING = make_model(media=FakeReader(FakeVocab(), frozenset({"image"})))
SEEN: Seen = {MediaUrl("aa"): Bitmap("image", 2, 1, b"", "a"), MediaUrl("bb"): Bitmap("image", 3, 1, b"", "b")}


def shown(prompt: object, *, model: object = SEEING) -> str:
    (read,) = read_prompts(prompt)
    return prompt_text(read_prompt(read, model, SEEN, "prompt").tokens, model)  # type: ignore[arg-type]


def test_markers_are_the_files_one_after_the_other() -> None:
    prompt = {"prompt_string": "<__media__> a <__media__>", "multimodal_data": ["aa", "bb"]}
    assert shown(prompt) == "<s>(image 2x1) a (image 3x1)"
    assert [medium.at for medium in prompt_media(read_prompts(prompt))] == [
        "prompt.multimodal_data.0",
        "prompt.multimodal_data.1",
    ]


def test_one_file_may_come_without_a_list() -> None:
    assert shown({"prompt_string": "a<__media__>", "multimodal_data": "bb"}) == "<s>a(image 3x1)"


def test_a_marker_without_files_is_text() -> None:
    assert shown("a <__media__>") == "<s>a <__media__>"


def test_a_model_that_sees_nothing_is_given_none() -> None:
    with pytest.raises(InvalidRequest, match="does not support multimodal requests"):
        shown({"prompt_string": "<__media__>", "multimodal_data": ["aa"]}, model=make_model())


def test_parts_that_the_model_can_not_be_shown_are_named() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"url": "aa"}}]
    (prompt,) = read_embeddings({"input": {"content": parts}}, native=False).prompts
    with pytest.raises(InvalidRequest, match=r"^input\.content\.1: audio input"):
        read_prompt(prompt, SEEING, SEEN, "input")


@pytest.mark.parametrize("kind", ["input_video", "video_url"])
def test_a_video_is_its_frames_and_their_times(kind: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "aa"}}]
    (prompt,) = read_embeddings({"input": {"content": parts}}, native=False).prompts
    frame = Bitmap("image", 2, 1, bytes(6), "1", of_video=True)
    seen: Seen = {MediaUrl("aa"): Video(("Video:", frame, "[0m0.00s]", frame))}
    said = prompt_text(read_prompt(prompt, SEEING, seen, "input").tokens, SEEING)
    assert said == "<s>aVideo:(image 2x1)[0m0.00s](image 2x1)"


def test_parts_stand_beside_each_other() -> None:
    parts = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "aa"}},
        {"type": "text", "text": "b"},
    ]
    (prompt,) = read_embeddings({"input": {"content": parts}}, native=False).prompts
    assert prompt_text(read_prompt(prompt, SEEING, SEEN, "input").tokens, SEEING) == "<s>a(image 2x1)b"
