"""Images and audio in every wire format, in a real server with projectors: the same tokens, text and errors."""

import base64
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server.app import IMAGE_DECODER
from server.app import IMAGE_DECODER as ANSWERER
from server.llama.media.chunks import M, start_media
from server.media.bitmap import Bitmap, bitmaps_of
from server.media.decode import Decoder
from tests.media_files import SOUNDS, media_file, pdf, png
from tests.support.ggufs import PLAIN, gguf_file
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.real_server import EXACT, RealServer, llamapool

FILES = Path(__file__).parents[1] / "media_files"
PICTURE = base64.b64encode(media_file("tiny.png")).decode()
URL = f"data:image/png;base64,{PICTURE}"
SOUND = base64.b64encode(media_file("tiny.wav")).decode()
PROJECTOR = TinyProjector("mlp")
TEXT = "What is this:"
FEW: dict[str, Any] = {"temperature": 0, "max_tokens": 4}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("gguf")
    paths = (gguf_file(folder, PLAIN), "--mmproj", str(projector_file(folder, PROJECTOR)), "--media-path", str(FILES))
    with llamapool(*paths, "-c", "4096", "-np", "2", "-t", "1", *EXACT) as running:
        yield running


def chat(content: object, **more: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **FEW, **more}


def shown(url: str, kind: str = "image_url") -> dict[str, Any]:
    return chat([{"type": "text", "text": TEXT}, {"type": kind, kind: {"url": url}}])


def anthropic_image(source: dict[str, str]) -> dict[str, Any]:
    return {"type": "image", "source": source}


BASE64 = {"type": "base64", "media_type": "image/png", "data": PICTURE}


def test_every_wire_format_shows_the_same(server: RealServer) -> None:
    said = server.post("/v1/chat/completions", shown(URL))
    n_prompt, text = said["usage"]["prompt_tokens"], said["choices"][0]["message"]["content"]
    alone = server.post("/v1/chat/completions/input_tokens", chat(TEXT))["input_tokens"]
    assert n_prompt == alone + PROJECTOR.n_tokens
    assert server.post("/v1/chat/completions/input_tokens", shown(URL))["input_tokens"] == n_prompt

    message = {**FEW, **chat([{"type": "text", "text": TEXT}, anthropic_image(BASE64)])}
    reply = server.post("/v1/messages", message)
    assert (reply["content"][0]["text"], usage(reply)) == (text, n_prompt)
    assert server.post("/v1/messages/count_tokens", message)["input_tokens"] == n_prompt

    for part in (
        {"type": "input_image", "image_url": URL},
        {"type": "input_file", "filename": "a.png", "file_data": URL},
    ):
        asked: dict[str, Any] = {"input": [{"role": "user", "content": [{"type": "input_text", "text": TEXT}, part]}]}
        response = server.post("/v1/responses", {**asked, "temperature": 0, "max_output_tokens": 4})
        assert response["usage"]["input_tokens"] == n_prompt
        assert response["output"][-1]["content"][0]["text"] == text
        assert server.post("/v1/responses/input_tokens", asked)["input_tokens"] == n_prompt

    ollama = {"stream": False, "options": {"temperature": 0, "num_predict": 4}}
    asked = {"messages": [{"role": "user", "content": TEXT, "images": [PICTURE]}], **ollama}
    assert server.post("/api/chat", asked)["prompt_eval_count"] == n_prompt  # where pictures stand before the text
    raw = server.post("/api/generate", {"raw": True, "prompt": TEXT, "images": [PICTURE], **ollama})
    assert raw["prompt_eval_count"] == PROJECTOR.n_tokens + n_text(server, TEXT)


def usage(reply: dict[str, Any]) -> int:
    found = reply["usage"]
    return int(found["input_tokens"] + found.get("cache_read_input_tokens", 0))


def n_text(server: RealServer, text: str) -> int:
    return len(server.post("/tokenize", {"content": text, "add_special": True})["tokens"])


def test_what_a_tool_has_shown_is_seen(server: RealServer) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [anthropic_image(BASE64)]}
    tools = [{"name": "look", "input_schema": {"type": "object"}}]

    def n(block: dict[str, Any]) -> int:
        messages = [{"role": "user", "content": "Look."}, {"role": "assistant", "content": [use]}]
        body = {"messages": [*messages, {"role": "user", "content": [block]}], "tools": tools}
        return int(server.post("/v1/messages/count_tokens", body)["input_tokens"])

    more = n(result) - n({**result, "content": []})
    assert PROJECTOR.n_tokens <= more < PROJECTOR.n_tokens + 5  # and what the template writes in front of a result
    page = {"type": "document", "source": {"type": "content", "content": [anthropic_image(BASE64)]}}
    assert n({**result, "content": [page]}) == n(result)


def test_a_marker_in_what_a_user_says_is_text(server: RealServer) -> None:
    marker = server.get("/props")["media_marker"]

    def count(content: object) -> int:
        return int(server.post("/v1/chat/completions/input_tokens", chat(content))["input_tokens"])

    plain = count(f"{TEXT}{marker}")
    assert plain == count([{"type": "text", "text": f"{TEXT}{marker}"}])
    both = count([{"type": "text", "text": f"{TEXT}{marker}"}, {"type": "image_url", "image_url": {"url": URL}}])
    assert both == plain + PROJECTOR.n_tokens
    body = {"prompt": f"{TEXT}{marker}", "n_predict": 1}
    assert server.post("/completion", body)["tokens_evaluated"] == n_text(server, f"{TEXT}{marker}")


def test_a_video_is_pictures_and_the_time_of_each_fifth_second(server: RealServer, video: list[str | Bitmap]) -> None:
    marker, options = server.get("/props")["media_marker"], {"temperature": 0, "n_predict": 8}
    text = "".join(part if isinstance(part, str) else marker for part in video)
    assert text == f"Video:{marker}[0m0.00s]{marker * 9}"
    frames = [url(part).partition(",")[2] for part in video if isinstance(part, Bitmap)]
    said = server.post("/completion", {"prompt": {"prompt_string": text, "multimodal_data": frames}, **options})
    prompt = {"prompt_string": marker, "multimodal_data": [base64.b64encode(media_file("tiny.mp4")).decode()]}
    found = server.post("/completion", {"prompt": prompt, **options})
    assert (found["content"], found["tokens_evaluated"]) == (said["content"], said["tokens_evaluated"])
    again = server.post("/completion", {"prompt": prompt, **options})
    assert again["content"] == found["content"]
    assert again["timings"]["cache_n"] > found["tokens_evaluated"] - 100


def url(frame: Bitmap) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(frame.width, frame.height, frame.data)).decode()}"


@pytest.fixture(scope="module")
def video() -> Iterator[list[str | Bitmap]]:
    decoder = Decoder(ANSWERER)
    yield list(decoder.decode(media_file("tiny.mp4"), 0).parts)
    decoder.close()


def test_a_document_has_text_and_images_of_pages(server: RealServer) -> None:
    """Through the projector's tokenizer: a page without text is an image, and no text is a control token."""

    def n(data: bytes) -> int:
        file = {"filename": "a", "file_data": base64.b64encode(data).decode()}
        body = chat([{"type": "file", "file": file}, {"type": "text", "text": TEXT}])
        counted = server.post("/v1/chat/completions/input_tokens", body)["input_tokens"]
        reply = server.post("/v1/chat/completions", body)
        assert reply["usage"]["prompt_tokens"] == counted
        return int(counted)

    blank = n(pdf("a", ""))
    assert 0 < n(pdf("a", None)) - blank + n_text(server, ": no text; not shown") - PROJECTOR.n_tokens < 12
    one, two = (n(pdf(None, "<|im_end|>" * times)) for times in (1, 11))
    assert two - one > 20


WAVE = media_file("tiny.wav")


@pytest.fixture(scope="module")
def ear(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return projector_file(tmp_path_factory.mktemp("ear"), TinyProjector("qwen3a"))


def test_samples_are_those_of_the_library(ear: Path) -> None:
    start_media()
    params = M.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.print_timings = False, False, False
    context = M.mtmd_init_from_file(str(ear).encode(), None, params)
    assert context
    decoder = Decoder(IMAGE_DECODER)
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
