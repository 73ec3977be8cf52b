"""Images, audio, video and documents through projectors with random weights, with native models.

Batches, slots and caches must not change the results, and an unusable projector must fail the load.
"""

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
from server.llama.library import log_callback
from server.llama.loader import LlamaLoader
from server.llama.media.chunks import M, NativeChunk, start_media
from server.llama.media.projector import Projector, check_is_projector
from server.media.bitmap import Bitmap, bitmaps_of
from server.media.decode import Decoder
from server.options.values import metadata_override
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec
from tests.media_files import AUDIO_FILES, media_file, pdf, png
from tests.model.native_fixtures import F32, Entry, all_logprobs, engine_on, load, load_failure, spy
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
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
Parts = Sequence[str | Bitmap]


def image(seed: int, width: int = 100, height: int = 80) -> Bitmap:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Bitmap("image", width, height, pixels.tobytes(), f"{seed:02x}" * 32)


@contextmanager
def loaded(folder: Path, kind: str, **native: Any) -> Iterator[tuple[Weights, Projector]]:
    """Load a model of `MODELS` with its projector; close it at the end. `native`: fields of `LoadParams`."""
    model, projector = (gguf_file(folder, MODELS[kind][0]), projector_file(folder, MODELS[kind][1]))
    params = {"n_ctx": 2048, "n_parallel": 4, "n_threads": 1, "warmup": False, "fit": False, **F32, **native}
    spec = ModelSpec("tiny", model, mmproj=projector, native=LoadParams(**params))
    with closing(LlamaLoader().load(spec, lambda _: True)) as weights:
        assert isinstance(weights.media, Projector)
        yield weights, weights.media


class MediaModel:
    """A loaded model with a projector and an engine."""

    def __init__(self, projector: Projector, engine: Engine) -> None:
        self.projector = projector
        self.engine = engine

    def request(self, parts: Parts, **fields: Any) -> Request:
        prompt = self.projector.tokenize(parts, add_special=True, parse_special=True)
        return Request("r", prompt.tokens, GREEDY, media=prompt.spans, **{"max_tokens": 8} | fields)

    async def generate(self, parts: Parts, **fields: Any) -> Reply:
        """Return the greedy reply. `fields`: of `Request`."""
        (reply,) = await run(self.engine, self.request(parts, **fields))
        assert reply.error is None
        return reply

    @property
    def n_encoded(self) -> int:
        return self.engine.stats.n_media_encoded


@asynccontextmanager
async def open_model(
    folder: Path, kind: str, params: EngineParams | None = None, **native: Any
) -> AsyncIterator[MediaModel]:
    checked = replace(params or EngineParams(), check_integrity=True)
    with loaded(folder, kind, **native) as (weights, projector):
        async with engine_on(weights, checked) as engine:
            yield MediaModel(projector, engine)


QUESTION: list[str | Bitmap] = ["hello ", image(1), "what is it", image(2), " tell me more about it, please do"]


@pytest.mark.parametrize("kind", ["window", "qwen2vl"])
async def test_concurrent_prompts_with_images_get_their_own_replies(gguf_folder: Path, kind: str) -> None:
    prompts: list[Parts] = [["see ", image(10 + i % 2), f" and say {i}"] for i in range(6)]
    async with open_model(gguf_folder, kind) as model:
        replies = await asyncio.gather(*(model.generate(parts) for parts in prompts))
        assert model.n_encoded == 2
        for parts, reply in zip(prompts, replies, strict=True):
            assert reply.tokens == (await model.generate(parts, cache_prompt=False)).tokens
        assert model.n_encoded == 2  # the embeddings are cached, too


def test_images_of_several_sequences_are_decoded_in_one_batch(
    gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each image attends to itself only. The number of threads is updated once before the decode."""
    with (
        loaded(gguf_folder, "gemma3", kv_unified=True) as (weights, projector),
        closing(cast(LlamaRunner, weights.runner())) as runner,
    ):
        inputs = [media_input(projector, image(seed)) for seed in range(3)]
        size = inputs[0].span.n_tokens
        entries = [Entry(seq, 0, [-2] * size, media=media) for seq, media in enumerate(inputs)]
        updates: list[None] = []
        monkeypatch.setattr(runner._threads, "change", lambda: updates.append(None))
        assert runner.decode(entries)
        assert len(updates) == 1
        batched = [all_logprobs(runner, output) for output in range(3)]
        for entry, logprobs in zip(entries, batched, strict=True):
            runner.seq_remove(entry.seq, 0)
            assert runner.decode([entry])
            assert all_logprobs(runner) == pytest.approx(logprobs, abs=1e-2)
        assert np.abs(np.subtract(batched[0], batched[1])).max() > 0.1
        with pytest.raises(InternalError):
            runner.decode([entries[0], Entry(1, 0, [-2] * (size - 1), media=inputs[1])])


def test_images_that_exceed_the_context_are_not_preprocessed(
    gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = spy(monkeypatch, "mtmd_bitmap_init", M)
    with loaded(gguf_folder, "qwen2vl") as (_, projector):
        for n_ctx in (1, 2048):
            projector.serves(n_ctx)
            projector.tokenize([image(1), image(2)], add_special=True, parse_special=True)
    assert [pixels is not None for (_, _, pixels), _ in calls] == [False] * 6 + [True] * 2


def test_a_long_run_of_a_character_with_an_image_does_not_overflow_the_stack(gguf_folder: Path) -> None:
    """The library's std::regex recurses for each character of a match."""
    overrides = (metadata_override("tokenizer.ggml.pre=str:tekken"),)
    with loaded(gguf_folder, "mlp", metadata_overrides=overrides) as (weights, projector):
        text = "a" * 100_000
        prompt = projector.tokenize([text, image(1)], add_special=False, parse_special=True)
        (span,) = prompt.spans
        assert weights.vocab.detokenize(prompt.tokens[: span.start]).startswith(text.encode())


def media_input(projector: Projector, bitmap: Bitmap) -> MediaInput:
    (span,) = projector.tokenize([bitmap], add_special=False, parse_special=False).spans
    assert isinstance(span.chunk, NativeChunk)
    return MediaInput(span, projector.encode([span.chunk])[0], 0)


@pytest.mark.parametrize("max_tokens", [1024, 40])
def test_images_of_several_requests_are_encoded_in_one_batch(gguf_folder: Path, max_tokens: int) -> None:
    """Images of 16 embeddings each are batched up to `mtmd_batch_max_tokens`."""
    with loaded(gguf_folder, "internvl", mtmd_batch_max_tokens=max_tokens) as (_, projector):
        prompts = [projector.tokenize([image(n, 64, 64)], add_special=False, parse_special=False) for n in range(3)]
        chunks = [cast(NativeChunk, span.chunk) for prompt in prompts for span in prompt.spans]
        assert [chunk.n_tokens for chunk in chunks] == [16] * 3
        batch = projector.encode(chunks)
        assert len(batch) == min(3, max_tokens // 16)
        for chunk, encoded in zip(chunks, batch, strict=False):
            (alone,) = projector.encode([chunk])
            values, expected = (np.frombuffer(each, np.float32) for each in (encoded, alone))
            assert np.abs(values - expected).max() < 1e-3 * np.abs(expected).max()
        assert batch[0] != batch[1]


@dataclass(slots=True)
class LazyImage:
    """An image whose pixels are decoded on demand. Counts the decodes."""

    image: Bitmap
    n_decoded: int = 0

    @property
    def bitmap(self) -> Bitmap:
        return replace(self.image, data=b"", again=self._decode)

    def _decode(self) -> bytes:
        self.n_decoded += 1
        return self.image.data


async def test_qwen2vl_encodes_video_frames_in_pairs(gguf_folder: Path) -> None:
    frames = [replace(image(n), id=f"video+{n}", of_video=True) for n in range(5)]
    lazy_frames = [LazyImage(frame) for frame in frames]
    async with open_model(gguf_folder, "qwen2vl") as model, open_model(gguf_folder, "qwen2vl") as other:
        images = await model.generate(["Video:", *(image(n) for n in range(5))])
        assert model.n_encoded == 5
        video = await model.generate(["Video:", *frames])
        assert model.n_encoded == 5 + 3
        assert video.finished[0].n_prompt < images.finished[0].n_prompt
        for _ in range(2):
            lazy = await other.generate(["Video:", *(frame.bitmap for frame in lazy_frames)])
            assert (lazy.tokens, other.n_encoded) == (video.tokens, 3)
            assert lazy.finished[0].n_prompt == video.finished[0].n_prompt
            assert [frame.n_decoded for frame in lazy_frames] == [1] * 5


@pytest.mark.parametrize("kind", ["gemma3", "internvl"])
async def test_a_cached_image_is_neither_decoded_nor_preprocessed(gguf_folder: Path, kind: str) -> None:
    lazy = LazyImage(image(2))
    question: Parts = [*QUESTION[:3], lazy.bitmap, *QUESTION[4:]]
    async with open_model(gguf_folder, kind) as model:
        first, second = model.request(QUESTION), model.request(question)
        assert second.prompt == first.prompt
        assert second.media == first.media
        keys = [[span.chunk.key for span in each.media if span.chunk is not None] for each in (first, second)]
        assert keys[0] == keys[1]
        expected = (await model.generate(QUESTION, id_slot=0)).tokens
        for options in ({"id_slot": 0}, {"id_slot": 1}, {"id_slot": 2, "cache_prompt": False}):
            assert (await model.generate(question, **options)).tokens == expected
        assert lazy.n_decoded == 0
    async with open_model(gguf_folder, kind) as model:  # with an empty cache
        assert (await model.generate(question)).tokens == expected
        assert lazy.n_decoded == 1


async def test_a_context_shift_keeps_images_whole(gguf_folder: Path) -> None:
    async with open_model(gguf_folder, "mlp", EngineParams(context_shift=True), n_parallel=1, n_ctx=256) as model:
        reply = await model.generate(["hello ", image(1), "what is it", image(2), " tell me"], max_tokens=250)
        assert len(reply.tokens) == 250


def test_an_unusable_projector_fails_the_load_with_a_reason(gguf_folder: Path, tmp_path: Path) -> None:
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
        assert re.search(message, load_failure(model, mmproj=path)), path


_MISMATCH = r"and those of tensors, do not fit each other \(GGML_ASSERT\("


@pytest.mark.parametrize(
    ("key", "at", "value", "message"),
    [
        ("clip.has_vision_encoder", 0, 0, "clip.has_vision_encoder must be of type bool, not u8"),
        ("clip.vision.image_size", 0, 5, "clip.vision.image_size must be of type u32, not i32"),
        *(("clip.vision.image_size", 4, size, _MISMATCH) for size in (16, 63, 255, 1000)),
        ("clip.vision.attention.layer_norm_epsilon", 4, 0xFF800000, "epsilon is -inf, not a small positive"),
        ("clip.vision.block_count", 4, 0, "clip.vision.block_count is 0, but the file has layers"),
        ("v.patch_embd.bias", 12, 26, "'v.patch_embd.bias' is of type 26, which is not for computing"),
    ],
)
def test_rejects_projector_values_on_which_the_library_aborts(
    gguf_folder: Path, tmp_path: Path, key: str, at: int, value: int, message: str
) -> None:
    """It aborts while it reads the file, builds the graph or computes."""
    whole = projector_file(tmp_path, TinyProjector("gemma3"))
    path = damaged(whole, whole.read_bytes().index(key.encode()) + len(key) + at, value.to_bytes(4, "little"))
    assert re.search(message, load_failure(gguf_file(gguf_folder, PLAIN), mmproj=path))


def test_rejects_a_projector_with_fewer_positions_than_patches(gguf_folder: Path, tmp_path: Path) -> None:
    """The library would abort at the first image."""
    whole = projector_file(tmp_path, TinyProjector("mlp"))
    at = whole.read_bytes().index(b"clip.vision.patch_size") + len("clip.vision.patch_size") + 4
    reason = load_failure(gguf_file(gguf_folder, PLAIN), mmproj=damaged(whole, at, bytes([7])))
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
        pytest.param(BlockingIOError(11, "no more processes"), False, id="not started"),
        pytest.param(-signal.SIGINT, False, id="Ctrl-C"),
        pytest.param(subprocess.TimeoutExpired("trial", 60.0), True, id="timeout"),
    ],
)
def test_projector_is_rejected_if_its_trial_times_out_but_not_if_it_cannot_run(
    gguf_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Exception | int, *, refused: bool
) -> None:
    def run(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        if isinstance(outcome, Exception):
            raise outcome
        return subprocess.CompletedProcess(command, outcome, b"", b"")

    monkeypatch.setattr(subprocess, "run", run)
    model, projector = gguf_file(gguf_folder, PLAIN), projector_file(tmp_path, TinyProjector("mlp"))
    if refused:
        assert "it is not done after 60 s" in load_failure(model, mmproj=projector)
    else:
        load(model, mmproj=projector).close()


def test_accepts_an_image_size_that_is_no_multiple_of_the_patch_size(gguf_folder: Path) -> None:
    """SigLIP has images of 384 pixels and patches of 14."""
    path = projector_file(gguf_folder, TinyProjector("gemma3", image_size=60))
    load(gguf_file(gguf_folder, PLAIN), mmproj=path).close()


@pytest.mark.parametrize(("kind", "pooling"), [("mlp", "mean"), ("gemma3", "none"), ("qwen2vl", "last")])
async def test_different_images_give_different_embeddings(gguf_folder: Path, kind: str, pooling: str) -> None:
    with loaded(gguf_folder, kind, embedding=True, pooling=pooling) as (weights, projector):
        engine = EmbeddingEngine([weights.embedding_runner()], EngineParams(), asyncio.get_running_loop())
        parts: list[Parts] = [["what is ", image(n), " here?"] for n in (1, 2, 1)]
        prompts = [projector.tokenize(each, add_special=True, parse_special=True) for each in parts]
        text = prompts[0].tokens[: prompts[0].spans[0].start]
        one, other, same, alone = await engine.submit([*prompts, text])
        assert np.array_equal(one, same)
        assert not np.allclose(one, other)
        assert one.shape == ((len(prompts[0]), 64) if pooling == "none" else (1, 64))
        if pooling == "none":
            assert np.allclose(one[: len(text)], alone, atol=1e-3)  # the text before the image does not attend to it
        await engine.close()


def audio(seed: int, seconds: float) -> Bitmap:
    samples = np.random.default_rng(seed).standard_normal(int(16_000 * seconds)).astype(np.float32) / 10
    return Bitmap("audio", len(samples), 1, samples.tobytes(), f"{seed:02x}" * 32)


async def test_audio_is_encoded_in_chunks_of_30_seconds(gguf_folder: Path) -> None:
    async with open_model(gguf_folder, "qwen2a", n_ctx=12_288) as model:
        assert (model.projector.kinds, model.projector.sample_rate) == (frozenset({"audio"}), 16_000)
        request = model.request(["hear ", audio(1, 31.0), " what?"])
        first, second = request.media
        assert (first.id, first.nth, first.end) == (second.id, 0, second.start)
        assert second.nth == 1
        assert first.chunk is not None
        assert second.chunk is not None
        assert first.chunk.key != second.chunk.key
        parts: Parts = ["hear ", audio(1, 2.0), " what?"]
        computed = await model.generate(parts, cache_prompt=False, id_slot=3)
        await model.generate(parts, id_slot=0)
        copied = await model.generate(parts, id_slot=1)
        assert copied.tokens == computed.tokens
        assert copied.finished[0].n_cached == computed.finished[0].n_prompt - 1
        assert model.n_encoded == 1
        one, other = (cast(NativeChunk, model.request(["", audio(seed, 1.0)]).media[0].chunk) for seed in (1, 2))
        assert model.projector.encode([one]) != model.projector.encode([other])
        with pytest.raises(InvalidRequest, match="image input is not supported"):
            model.request(["see ", image(1)])
        with pytest.raises(InvalidRequest, match="nothing to read"):
            model.request(["hear ", audio(1, 0.0)])
        for sample in (np.nan, np.inf, -np.inf, 1e30):  # they would stay in KV cells that other sequences reuse
            samples = np.full(1600, sample, np.float32)
            with pytest.raises(InvalidRequest, match="samples that are not numbers"):
                model.request(["hear ", Bitmap("audio", 1600, 1, samples.tobytes(), "ab" * 32)])


FILES = Path(__file__).parents[1] / "media_files"
URL = f"data:image/png;base64,{base64.b64encode(media_file('tiny.png')).decode()}"
PROJECTOR = TinyProjector("mlp")
TEXT = "What is this:"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("gguf")
    paths = (gguf_file(folder, PLAIN), "--mmproj", str(projector_file(folder, PROJECTOR)), "--media-path", str(FILES))
    with llamapool(*paths, "-c", "4096", "-np", "2", "-t", "1", *EXACT) as running:
        yield running


def chat(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 4}


def n_tokens(server: RealServer, text: str) -> int:
    return len(server.post("/tokenize", {"content": text, "add_special": True})["tokens"])


def test_a_media_marker_in_a_message_is_text(server: RealServer) -> None:
    marker = server.get("/props")["media_marker"]

    def count(content: object) -> int:
        return int(server.post("/v1/chat/completions/input_tokens", chat(content))["input_tokens"])

    plain = count(f"{TEXT}{marker}")
    assert plain == count([{"type": "text", "text": f"{TEXT}{marker}"}])
    both = count([{"type": "text", "text": f"{TEXT}{marker}"}, {"type": "image_url", "image_url": {"url": URL}}])
    assert both == plain + PROJECTOR.n_tokens
    body = {"prompt": f"{TEXT}{marker}", "n_predict": 1}
    assert server.post("/completion", body)["tokens_evaluated"] == n_tokens(server, f"{TEXT}{marker}")


def test_a_video_becomes_frames_with_a_timestamp_every_five_seconds(
    server: RealServer, video: list[str | Bitmap]
) -> None:
    marker, options = server.get("/props")["media_marker"], {"temperature": 0, "n_predict": 8}
    text = "".join(part if isinstance(part, str) else marker for part in video)
    assert text == f"Video:{marker}[0m0.00s]{marker * 9}"
    frames = [url(part).partition(",")[2] for part in video if isinstance(part, Bitmap)]
    expected = server.post("/completion", {"prompt": {"prompt_string": text, "multimodal_data": frames}, **options})
    prompt = {"prompt_string": marker, "multimodal_data": [base64.b64encode(media_file("tiny.mp4")).decode()]}
    reply = server.post("/completion", {"prompt": prompt, **options})
    assert (reply["content"], reply["tokens_evaluated"]) == (expected["content"], expected["tokens_evaluated"])
    again = server.post("/completion", {"prompt": prompt, **options})
    assert again["content"] == reply["content"]
    assert again["timings"]["cache_n"] > reply["tokens_evaluated"] - 100


def url(frame: Bitmap) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(frame.width, frame.height, frame.data)).decode()}"


@pytest.fixture(scope="module")
def video() -> Iterator[list[str | Bitmap]]:
    decoder = Decoder(IMAGE_DECODER)
    yield list(decoder.decode(media_file("tiny.mp4"), 0).parts)
    decoder.close()


def test_pages_of_a_pdf_become_text_or_images(server: RealServer) -> None:
    """A page without text becomes an image. Text is never parsed as control tokens."""

    def n_prompt(data: bytes) -> int:
        file = {"filename": "a", "file_data": base64.b64encode(data).decode()}
        body = chat([{"type": "file", "file": file}, {"type": "text", "text": TEXT}])
        counted = server.post("/v1/chat/completions/input_tokens", body)["input_tokens"]
        reply = server.post("/v1/chat/completions", body)
        assert reply["usage"]["prompt_tokens"] == counted
        return int(counted)

    blank = n_prompt(pdf("a", ""))
    assert 0 < n_prompt(pdf("a", None)) - blank + n_tokens(server, ": no text; not shown") - PROJECTOR.n_tokens < 12
    one, eleven = (n_prompt(pdf(None, "<|im_end|>" * times)) for times in (1, 11))
    assert eleven - one > 20


def test_decodes_audio_files_to_the_same_samples_as_the_library(gguf_folder: Path) -> None:
    start_media()
    params = M.mtmd_context_params_default()
    params.use_gpu, params.warmup, params.print_timings = False, False, False
    projector = projector_file(gguf_folder, TinyProjector("qwen3a"))
    context = M.mtmd_init_from_file(str(projector).encode(), None, params)
    assert context
    decoder = Decoder(IMAGE_DECODER)
    try:
        rate = M.mtmd_get_audio_sample_rate(context)
        for name in AUDIO_FILES:
            data = media_file(name)
            buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
            options = M.mtmd_helper_init_opt_default()
            bitmap = M.mtmd_helper_bitmap_init_from_buf_wrapper(context, buffer, len(data), False, options).bitmap
            assert bitmap, name
            content = ctypes.string_at(M.mtmd_bitmap_get_data(bitmap), M.mtmd_bitmap_get_n_bytes(bitmap))
            expected_id = M.mtmd_bitmap_get_id(bitmap)
            M.mtmd_bitmap_free(bitmap)
            (decoded,) = bitmaps_of(decoder.decode(data, rate))
            samples, expected = (np.frombuffer(each, np.float32) for each in (decoded.data, content))
            assert samples.shape == expected.shape, name
            # Another build of the same code rounds differently when it resamples. An MP3 is decoded to 16 bits.
            assert np.abs(samples - expected).max() < (1 / 32768 if name == "tiny.mp3" else 1e-6), name
            assert decoded.id.encode() == expected_id
    finally:
        decoder.close()
        M.mtmd_free(context)


def test_special_tokens_of_a_long_text_with_an_image_stay_whole(gguf_folder: Path) -> None:
    turn = "<|im_start|>user\n" + "\u4f60\u597d" * 600 + "<|im_end|>\n"  # no cut between words is possible
    with loaded(gguf_folder, "mlp") as (weights, projector):
        plain = weights.vocab.tokenize(turn * 30, add_special=True, parse_special=True)
        prompt = projector.tokenize([turn * 30, image(1)], add_special=True, parse_special=True)
        assert prompt.tokens[: prompt.spans[0].start] == plain


@pytest.mark.parametrize("text", ["a", "a" * 5000])  # a long run is tokenized in another thread
def test_the_librarys_reason_for_an_unreadable_medium_is_reported(
    gguf_folder: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    def fail(*_: object) -> int:
        log_callback(4, b"it is odd\n", None)
        return 1

    with loaded(gguf_folder, "mlp") as (_, projector):
        monkeypatch.setattr(M, "mtmd_tokenize_from_parts", fail)
        with pytest.raises(InvalidRequest, match="it is odd"):
            projector.tokenize([text, image(1)], add_special=True, parse_special=True)
