"""Images and audio through projectors with random weights: the same results in any cell, wire format and batch."""

import asyncio
import base64
import ctypes
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from server.app import IMAGE_DECODER
from server.engine.embedding import EmbeddingEngine
from server.engine.engine import Engine
from server.engine.media import MediaInput
from server.engine.params import EngineParams
from server.engine.request import Request, SamplingParams
from server.errors import InternalError, InvalidRequest, ModelFailed
from server.llama.context.runner import LlamaRunner
from server.llama.files.gguf_header import read_header
from server.llama.loader import LlamaLoader
from server.llama.media.chunks import M, NativeChunk, start_media
from server.llama.media.projector import Projector, check_is_projector
from server.media.bitmap import Bitmap, bitmaps_of
from server.media.decode import Decoder
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec
from tests.media_files import SOUNDS, media_file, pdf, png
from tests.model.native_fixtures import F32, Entry, engine_on, failure, load, raw_logits, spy
from tests.support.ggufs import MROPE, PLAIN, SLIDING_WINDOW, TinyModel, damaged, gguf_file, truncated
from tests.support.ggufs.projector import TinyProjector, projector_file
from tests.support.real_server import EXACT, RealServer, llamapool
from tests.unit.engine.builders import Reply, run

MODELS = {
    "mlp": (PLAIN, TinyProjector("mlp")),
    "gemma3": (PLAIN, TinyProjector("gemma3")),
    "window": (SLIDING_WINDOW, TinyProjector("gemma3")),
    "qwen2vl": (MROPE, TinyProjector("qwen2vl")),
    "internvl": (PLAIN, TinyProjector("internvl")),
    "qwen2a": (PLAIN, TinyProjector("qwen2a")),
}
KINDS = pytest.mark.parametrize("kind", ["window", "qwen2vl"])
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
Parts = Sequence[str | Bitmap]


def picture(number: int, width: int = 100, height: int = 80) -> Bitmap:
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Bitmap("image", width, height, pixels.tobytes(), f"{number:02x}" * 32)


def specification(folder: Path, kind: str, **native: Any) -> ModelSpec:
    model, projector = MODELS[kind]
    params = {"n_ctx": 2048, "n_parallel": 4, "n_threads": 1, "warmup": False, "fit": False, **F32, **native}
    return ModelSpec(
        "tiny", gguf_file(folder, model), mmproj=projector_file(folder, projector), native=LoadParams(**params)
    )


@contextmanager
def loaded(folder: Path, kind: str, **native: Any) -> Iterator[tuple[Weights, Projector]]:
    with closing(LlamaLoader().load(specification(folder, kind, **native), lambda _: True)) as weights:
        assert isinstance(weights.media, Projector)
        yield weights, weights.media


class Bench:
    def __init__(self, projector: Projector, engine: Engine) -> None:
        self.projector = projector
        self.engine = engine

    def request(self, parts: Parts, **fields: Any) -> Request:
        prompt = self.projector.tokenize(parts, add_special=True, parse_special=True)
        return Request("r", prompt.tokens, GREEDY, media=prompt.spans, **{"max_tokens": 8} | fields)

    async def ask(self, parts: Parts, **fields: Any) -> Reply:
        (reply,) = await run(self.engine, self.request(parts, **fields))
        assert reply.error is None
        return reply

    @property
    def n_encoded(self) -> int:
        return self.engine.stats.n_media_encoded


@asynccontextmanager
async def bench(folder: Path, kind: str, params: EngineParams | None = None, **native: Any) -> AsyncIterator[Bench]:
    checked = replace(params or EngineParams(), check_integrity=True)
    with loaded(folder, kind, **native) as (weights, projector):
        async with engine_on(weights, checked) as engine:
            yield Bench(projector, engine)


QUESTION: list[str | Bitmap] = ["hello ", picture(1), "what is it", picture(2), " tell me more about it, please do"]


@KINDS
async def test_several_at_once_say_what_each_alone_says(gguf_folder: Path, kind: str) -> None:
    prompts: list[Parts] = [["see ", picture(10 + i % 2), f" and say {i}"] for i in range(6)]
    async with bench(gguf_folder, kind) as b:
        together = await asyncio.gather(*(b.ask(parts) for parts in prompts))
        assert b.n_encoded == 2
        for parts, answer in zip(prompts, together, strict=True):
            assert answer.tokens == (await b.ask(parts, cache_prompt=False)).tokens
        assert b.n_encoded == 2  # the embeddings are kept, too


def test_pictures_of_several_sequences_are_seen_at_once(gguf_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sees all of its own, and nothing of the others'. The threads are counted before, too."""
    with (
        loaded(gguf_folder, "gemma3", kv_unified=True) as (weights, projector),
        closing(cast(LlamaRunner, weights.runner())) as runner,
    ):
        inputs = [media_input(projector, picture(number)) for number in range(3)]
        size = inputs[0].span.n_tokens
        entries = [Entry(seq, 0, [-2] * size, media=given) for seq, given in enumerate(inputs)]
        looks: list[None] = []
        monkeypatch.setattr(runner._threads, "change", lambda: looks.append(None))
        assert runner.decode(entries)
        assert len(looks) == 1
        together = [raw_logits(runner, output) for output in range(3)]
        for entry, expected in zip(entries, together, strict=True):
            runner.seq_remove(entry.seq, 0)
            assert runner.decode([entry])
            assert raw_logits(runner) == pytest.approx(expected, abs=1e-2)
        assert np.abs(np.subtract(together[0], together[1])).max() > 0.1
        with pytest.raises(InternalError):
            runner.decode([entries[0], Entry(1, 0, [-2] * (size - 1), media=inputs[1])])


def test_pictures_that_no_context_holds_are_not_preprocessed(
    gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spy(monkeypatch, "mtmd_bitmap_init", M)
    with loaded(gguf_folder, "qwen2vl") as (_, projector):
        for n_ctx in (1, 2048):
            projector.serves(n_ctx)
            projector.tokenize([picture(1), picture(2)], add_special=True, parse_special=True)
    assert [pixels is not None for (_, _, pixels), _ in made] == [False] * 6 + [True] * 2


def media_input(projector: Projector, seen: Bitmap) -> MediaInput:
    (span,) = projector.tokenize([seen], add_special=False, parse_special=False).spans
    assert isinstance(span.chunk, NativeChunk)
    return MediaInput(span, projector.encode([span.chunk])[0], 0)


@pytest.mark.parametrize("most", [1024, 40])
def test_pictures_of_several_requests_are_encoded_together(gguf_folder: Path, most: int) -> None:
    """As far as the library takes them into a batch: 16 embeddings each."""
    with loaded(gguf_folder, "internvl", mtmd_batch_max_tokens=most) as (_, projector):
        prompts = [projector.tokenize([picture(n, 64, 64)], add_special=False, parse_special=False) for n in range(3)]
        chunks = [cast(NativeChunk, span.chunk) for prompt in prompts for span in prompt.spans]
        assert [chunk.n_tokens for chunk in chunks] == [16] * 3
        together = projector.encode(chunks)
        assert len(together) == min(3, most // 16)
        for chunk, found in zip(chunks, together, strict=False):
            (alone,) = projector.encode([chunk])
            numbers, expected = (np.frombuffer(each, np.float32) for each in (found, alone))
            assert np.abs(numbers - expected).max() < 1e-3 * np.abs(expected).max()
        assert together[0] != together[1]


@dataclass(slots=True)
class Known:
    """A picture whose size is known, and that counts how often it is decoded."""

    picture: Bitmap
    n_decoded: int = 0

    @property
    def bitmap(self) -> Bitmap:
        return replace(self.picture, data=b"", again=self._again)

    def _again(self) -> bytes:
        self.n_decoded += 1
        return self.picture.data


async def test_a_model_that_takes_two_frames_of_a_video_together_is_given_them_so(gguf_folder: Path) -> None:
    frames = [replace(picture(n), id=f"video+{n}", of_video=True) for n in range(5)]
    known_frames = [Known(frame) for frame in frames]
    async with bench(gguf_folder, "qwen2vl") as b, bench(gguf_folder, "qwen2vl") as other:
        alone = await b.ask(["Video:", *(picture(n) for n in range(5))])
        assert b.n_encoded == 5
        together = await b.ask(["Video:", *frames])
        assert b.n_encoded == 5 + 3
        assert together.finished[0].n_prompt < alone.finished[0].n_prompt
        for _ in range(2):
            known = await other.ask(["Video:", *(frame.bitmap for frame in known_frames)])
            assert (known.tokens, other.n_encoded) == (together.tokens, 3)
            assert known.finished[0].n_prompt == together.finished[0].n_prompt
            assert [frame.n_decoded for frame in known_frames] == [1] * 5


@pytest.mark.parametrize("kind", ["gemma3", "internvl"])
async def test_a_picture_that_was_seen_before_is_neither_decoded_nor_preprocessed(gguf_folder: Path, kind: str) -> None:
    known = Known(picture(2))
    question: Parts = [*QUESTION[:3], known.bitmap, *QUESTION[4:]]
    async with bench(gguf_folder, kind) as b:
        fresh, later = b.request(QUESTION), b.request(question)
        assert later.prompt == fresh.prompt
        assert later.media == fresh.media
        keys = [[span.chunk.key for span in each.media if span.chunk is not None] for each in (fresh, later)]
        assert keys[0] == keys[1]
        expected = (await b.ask(QUESTION, id_slot=0)).tokens
        for options in ({"id_slot": 0}, {"id_slot": 1}, {"id_slot": 2, "cache_prompt": False}):
            assert (await b.ask(question, **options)).tokens == expected
        assert known.n_decoded == 0
    async with bench(gguf_folder, kind) as b:  # which has no embeddings of it
        assert (await b.ask(question)).tokens == expected
        assert known.n_decoded == 1


async def test_a_full_context_is_shifted_and_no_picture_cut(gguf_folder: Path) -> None:
    async with bench(gguf_folder, "mlp", EngineParams(context_shift=True), n_parallel=1, n_ctx=256) as b:
        answer = await b.ask(["hello ", picture(1), "what is it", picture(2), " tell me"], max_tokens=250)
        assert len(answer.tokens) == 250


def test_a_projector_that_cannot_work_is_one_clear_line(gguf_folder: Path, tmp_path: Path) -> None:
    model, other = gguf_file(gguf_folder, PLAIN), gguf_file(gguf_folder, TinyModel(n_embd=128))
    cases = {
        projector_file(
            gguf_folder, TinyProjector("mlp", n_embd_text=96, n_embd=48)
        ): "another model's: .* 64 numbers, .* for 96",
        projector_file(gguf_folder, TinyProjector("mlp", n_embd_text=96)): "mismatch between .*64.*96",
        other: "no projector: its architecture is llama",
        truncated(projector_file(tmp_path, TinyProjector("mlp"))): "truncated",
        tmp_path / "missing.gguf": "does not exist",
        projector_file(gguf_folder, TinyProjector("gemma3", positions="F16")): r"v\.position_embd\.weight .* as F32",
        projector_file(gguf_folder, TinyProjector("qwen2a", positions="F16")): r"a\.position_embd\.weight .* as F32",
        projector_file(gguf_folder, TinyProjector("qwen3a", positions="F16")): r"a\.position_embd\.weight .* as F32",
    }
    for path, message in cases.items():
        assert re.search(message, failure(model, mmproj=path)), path


_NO_FIT = r"and those of tensors, do not fit each other \(GGML_ASSERT\("


@pytest.mark.parametrize(
    ("key", "at", "value", "message"),
    [
        ("clip.has_vision_encoder", 0, 0, "clip.has_vision_encoder must be of type bool, not u8"),
        ("clip.vision.image_size", 0, 5, "clip.vision.image_size must be of type u32, not i32"),
        *(("clip.vision.image_size", 4, size, _NO_FIT) for size in (16, 63, 255, 1000)),
        ("clip.vision.attention.layer_norm_epsilon", 4, 0xFF800000, "epsilon is -inf, not a small positive"),
        ("clip.vision.block_count", 4, 0, "clip.vision.block_count is 0, but the file has layers"),
        ("v.patch_embd.bias", 12, 26, "'v.patch_embd.bias' is of type 26, which is not for computing"),
    ],
)
def test_a_projector_with_a_value_that_would_end_the_process_is_refused(
    gguf_folder: Path, tmp_path: Path, key: str, at: int, value: int, message: str
) -> None:
    """The library asserts it while it reads the file, builds the graph or computes."""
    whole = projector_file(tmp_path, TinyProjector("gemma3"))
    path = damaged(whole, whole.read_bytes().index(key.encode()) + len(key) + at, value.to_bytes(4, "little"))
    assert re.search(message, failure(gguf_file(gguf_folder, PLAIN), mmproj=path))


def test_a_projector_with_fewer_positions_than_patches_is_refused(gguf_folder: Path, tmp_path: Path) -> None:
    """The library ended the process at the first image."""
    whole = projector_file(tmp_path, TinyProjector("mlp"))
    at = whole.read_bytes().index(b"clip.vision.patch_size") + len("clip.vision.patch_size") + 4
    reason = failure(gguf_file(gguf_folder, PLAIN), mmproj=damaged(whole, at, bytes([7])))
    assert "v.position_embd.weight has 64 rows, fewer than the image's 81 positions" in reason
    header = read_header(whole)
    check_is_projector("tiny", whole, header)
    tensors = (*header.tensors, replace(header.tensors[0], name="v.class_embd"))
    other_key = {"clip.projector_type": "", "clip.vision.projector_type": "mlp"}
    for metadata in (header.metadata, header.metadata | other_key):
        with pytest.raises(ModelFailed, match=r"has 64 rows, fewer than the image's 65 positions"):
            check_is_projector("tiny", whole, replace(header, tensors=tensors, metadata=metadata))


@pytest.mark.parametrize(
    ("outcome", "refused"),
    [
        pytest.param(BlockingIOError(11, "no more processes"), False, id="limit"),
        pytest.param(-signal.SIGINT, False, id="Ctrl-C"),
        pytest.param(subprocess.TimeoutExpired("trial", 60.0), True, id="never built"),
    ],
)
def test_a_trial_refuses_a_projector_whose_graph_is_never_built_but_not_one_it_did_not_try(
    gguf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Exception | int, *, refused: bool
) -> None:
    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        if isinstance(outcome, Exception):
            raise outcome
        return subprocess.CompletedProcess(command, outcome, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    model, projector = gguf_file(gguf_folder, PLAIN), projector_file(tmp_path, TinyProjector("mlp"))
    if refused:
        assert "it is not done after 60 s" in failure(model, mmproj=projector)
    else:
        load(model, mmproj=projector).close()


def test_an_image_need_not_be_a_whole_number_of_patches(gguf_folder: Path) -> None:
    """SigLIP's 384 pixels are 27.4 patches of 14."""
    path = projector_file(gguf_folder, TinyProjector("gemma3", image_size=60))
    load(gguf_file(gguf_folder, PLAIN), mmproj=path).close()


@pytest.mark.parametrize(("kind", "pooling"), [("mlp", "mean"), ("gemma3", "none"), ("qwen2vl", "last")])
async def test_vectors_tell_pictures_apart(gguf_folder: Path, kind: str, pooling: str) -> None:
    with loaded(gguf_folder, kind, embedding=True, pooling=pooling) as (weights, projector):
        engine = EmbeddingEngine([weights.embedding_runner()], EngineParams(), asyncio.get_running_loop())
        parts: list[Parts] = [["what is ", picture(n), " here?"] for n in (1, 2, 1)]
        prompts = [projector.tokenize(each, add_special=True, parse_special=True) for each in parts]
        text = prompts[0].tokens[: prompts[0].spans[0].start]
        one, other, same, alone = await engine.submit([*prompts, text])
        assert np.array_equal(one, same)
        assert not np.allclose(one, other)
        assert one.shape == ((len(prompts[0]), 64) if pooling == "none" else (1, 64))
        if pooling == "none":
            assert np.allclose(one[: len(text)], alone, atol=1e-3)  # nothing in front of the picture knows of it
        await engine.close()


def sound(number: int, seconds: float) -> Bitmap:
    samples = np.random.default_rng(number).standard_normal(int(16_000 * seconds)).astype(np.float32) / 10
    return Bitmap("audio", len(samples), 1, samples.tobytes(), f"{number:02x}" * 32)


async def test_sounds_are_heard_in_pieces_of_half_a_minute(gguf_folder: Path) -> None:
    async with bench(gguf_folder, "qwen2a", n_ctx=12_288) as b:
        assert (b.projector.kinds, b.projector.sample_rate) == (frozenset({"audio"}), 16_000)
        request = b.request(["hear ", sound(1, 31.0), " what?"])
        first, second = request.media
        assert (first.id, first.nth, first.end) == (second.id, 0, second.start)
        assert second.nth == 1
        assert first.chunk is not None
        assert second.chunk is not None
        assert first.chunk.key != second.chunk.key
        parts: Parts = ["hear ", sound(1, 2.0), " what?"]
        computed = await b.ask(parts, cache_prompt=False, id_slot=3)
        await b.ask(parts, id_slot=0)
        copied = await b.ask(parts, id_slot=1)
        assert copied.tokens == computed.tokens
        assert copied.finished[0].n_cached == computed.finished[0].n_prompt - 1
        assert b.n_encoded == 1
        one, other = (cast(NativeChunk, b.request(["", sound(number, 1.0)]).media[0].chunk) for number in (1, 2))
        assert b.projector.encode([one]) != b.projector.encode([other])
        with pytest.raises(InvalidRequest, match="image input is not supported"):
            b.request(["see ", picture(1)])
        with pytest.raises(InvalidRequest, match="nothing to read"):
            b.request(["hear ", sound(1, 0.0)])
        for loud in (np.nan, np.inf, -np.inf, 1e30):  # else they are in cells where others' come to lie
            samples = np.full(1600, loud, np.float32)
            with pytest.raises(InvalidRequest, match="samples that are not numbers"):
                b.request(["hear ", Bitmap("audio", 1600, 1, samples.tobytes(), "ab" * 32)])


FILES = Path(__file__).parents[1] / "media_files"
PICTURE = base64.b64encode(media_file("tiny.png")).decode()
URL = f"data:image/png;base64,{PICTURE}"
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


def n_text(server: RealServer, text: str) -> int:
    return len(server.post("/tokenize", {"content": text, "add_special": True})["tokens"])


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
    decoder = Decoder(IMAGE_DECODER)
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
