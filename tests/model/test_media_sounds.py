"""Sounds in a real server with a projector that hears: the samples are the library's, in chats and transcriptions."""

import base64
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from server.app import PICTURES
from server.llama.media.chunks import M, start_media
from server.media.bitmap import bitmaps_of
from server.media.decode import Decoder
from tests.media_files import SOUNDS, media_file
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.real_server import EXACT, RealServer, llamapool

SOUND = media_file("tiny.wav")


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return projector_file(tmp_path_factory.mktemp("ear"), TinyProjector("qwen3a"))


@pytest.fixture(scope="module")
def server(ear: Path) -> Iterator[RealServer]:
    model = gguf_file(ear.parent, PLAIN)
    with llamapool(model, "--mmproj", str(ear), "-c", "2048", "-np", "2", "-t", "1", *EXACT) as running:
        yield running


@pytest.fixture
def client(server: RealServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(api_key="x", base_url=f"{server.base_url}/v1", max_retries=0) as made:
        yield made


def test_samples_are_those_of_the_library(ear: Path) -> None:
    start_media()
    params = M.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.print_timings = False, False, False
    context = M.mtmd_init_from_file(str(ear).encode(), None, params)
    assert context
    decoder = Decoder(PICTURES)
    try:
        rate = M.mtmd_get_audio_sample_rate(context)
        for name in SOUNDS:
            data = media_file(name)
            held = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            options = M.mtmd_helper_init_opt_default()
            bitmap = M.mtmd_helper_bitmap_init_from_buf_wrapper(context, held, len(data), False, options).bitmap
            assert bitmap, name
            wanted = ctypes.string_at(M.mtmd_bitmap_get_data(bitmap), M.mtmd_bitmap_get_n_bytes(bitmap))
            name_of_it = M.mtmd_bitmap_get_id(bitmap)
            M.mtmd_bitmap_free(bitmap)
            (found,) = bitmaps_of(decoder.decode(data, rate))
            heard, expected = (np.frombuffer(each, np.float32) for each in (found.data, wanted))
            assert heard.shape == expected.shape, name
            # The same code compiled otherwise: resampling rounds otherwise, and an MP3 becomes 16 bits on its way.
            assert np.abs(heard - expected).max() < (1 / 32768 if name == "tiny.mp3" else 1e-6), name
            assert found.id.encode() == name_of_it
    finally:
        decoder.close()
        M.mtmd_free(context)


def test_what_the_model_takes_is_told(server: RealServer) -> None:
    assert server.get("/props")["modalities"] == {"vision": False, "video": False, "audio": True}
    assert server.get("/v1/models")["data"][0]["architecture"]["input_modalities"] == ["text", "audio"]


@pytest.mark.parametrize("name", SOUNDS)
def test_a_chat_hears_what_a_transcription_hears(server: RealServer, client: openai.OpenAI, name: str) -> None:
    data = base64.b64encode(media_file(name)).decode()
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "Transcribe audio to text"},
        {"type": "input_audio", "input_audio": {"data": data, "format": name.rpartition(".")[2]}},
    ]
    few = {"temperature": 0, "max_tokens": 6}
    said = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], **few})
    heard = client.audio.transcriptions.create(
        model=server.get("/v1/models")["data"][0]["id"],
        file=(name, media_file(name)),
        temperature=0,
        extra_body={"max_tokens": 6},
    )
    assert heard.text == said["choices"][0]["message"]["content"]
    assert heard.usage is not None
    assert heard.usage.type == "tokens"
    assert heard.usage.input_tokens == said["usage"]["prompt_tokens"]
