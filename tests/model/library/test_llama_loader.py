"""Loading of good and broken files, shared weights, rejected settings, and vocabularies, with native models.

Every failure is a `ModelFailed`; the library must never abort.
"""

import ctypes
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from hypothesis import example, given, settings
from hypothesis import strategies as st

from server.errors import InternalError, InvalidRequest, ModelFailed
from server.llama.files.gguf_header import BLOCKS
from server.llama.files.model_file import check_files
from server.llama.library import C
from server.llama.loader import LlamaLoader
from server.llama.vocab import LlamaVocab
from server.llama.weights.model import LlamaWeights
from server.llama.weights.params import check_computable
from server.pool.memory import HOST
from server.pool.protocols import Weights
from server.pool.spec import LoadParams, ModelSpec, ScaledFile
from tests.model.native_fixtures import Entry, load, load_failure, open_runner, spy, write_gguf
from tests.support.ggufs import BERT, CHATML, TinyModel, damaged, gguf_file, lora_file
from tests.support.ggufs.model import Arch
from tests.support.ggufs.writing import finish
from tests.support.real_server import ROOT


def test_info_describes_a_loaded_model(tiny_path: Path) -> None:
    weights = load(tiny_path)
    info = weights.info
    assert (info.ftype, info.n_vocab, info.n_ctx_train, info.n_embd) == ("all F32", 400, 2048, 64)
    assert info.chat_template == CHATML
    assert info.chat_template_tool_use == ""
    assert (info.bos_token, info.eos_token) == ("<s>", "</s>")
    assert info.metadata["general.architecture"] == "llama"
    assert info.n_params * 4 == info.size
    weights.close()


@pytest.mark.parametrize(
    ("arch", "reason"),
    [
        ("t5", "the model is an encoder and a decoder: such can't be served"),  # llama-server aborts
        ("dream", "keeps no memory of its context, so it cannot generate"),  # llama-server answers 500 to all requests
        ("unknown", "unknown model architecture: 'unknown'"),
    ],
)
def test_rejects_unsupported_architectures(arch: Arch, reason: str, gguf_folder: Path) -> None:
    assert reason in load_failure(gguf_file(gguf_folder, TinyModel(arch=arch, n_head_kv=4)))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reject such names")
def test_loads_a_model_from_a_folder_whose_name_is_not_utf_8(tiny_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"mod\xe8les")
    folder.mkdir()
    spec = ModelSpec("tiny", Path(shutil.copy(tiny_path, folder)), native=LoadParams(n_ctx=256, warmup=False))
    assert LlamaLoader().fit(spec).footprint
    LlamaLoader().load(spec, lambda _: True).close()


@pytest.mark.parametrize("result", [False, RuntimeError("the pipe is closed")])
def test_the_progress_callback_can_stop_the_load(tiny_path: Path, result: bool | Exception) -> None:
    progress = Mock(side_effect=[True, result])
    with pytest.raises(ModelFailed, match="stopped"):
        LlamaLoader().load(ModelSpec("tiny", tiny_path), progress)
    assert progress.call_count == 2


@pytest.mark.parametrize(("on_device", "sizes"), [(False, [2]), (True, [2, 64])])
def test_the_warmup_of_a_device_includes_a_full_ubatch(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, on_device: bool, sizes: list[int]
) -> None:
    decodes = spy(monkeypatch, "llama_decode")
    monkeypatch.setattr("server.llama.context.params.offloads", lambda _: on_device)
    with open_runner(tiny_path, n_ubatch=64, warmup=True, kv_unified=True) as runner:
        assert runner.decode([Entry(0, 0, [5])])
    assert [batch.n_tokens for (_, batch), _ in decodes] == [*sizes, 1]


def test_a_failed_load_frees_its_adapters_of_shared_weights(
    tiny_path: Path, tmp_path: Path, gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, freed = spy(monkeypatch, "llama_adapter_lora_init"), spy(monkeypatch, "llama_adapter_lora_free")
    loader, native = LlamaLoader(), LoadParams(n_ctx=256, n_parallel=1, warmup=False)
    good, missing = ScaledFile(lora_file(gguf_folder)), tmp_path / "missing.gguf"
    spec = ModelSpec("tiny", tiny_path, native=native)
    with closing(loader.load(spec, lambda _: True)):
        for broken in (
            replace(spec, native=replace(native, lora=(good, ScaledFile(missing)))),
            replace(spec, native=replace(native, lora=(good,)), mmproj=missing),
        ):
            with pytest.raises(ModelFailed, match="does not exist"):
                loader.load(broken, lambda _: True)
            assert len(made) == len(freed)
    assert len(made) == 2


def test_model_entries_of_one_file_share_its_weights_until_the_last_is_closed(
    tmp_path: Path, gguf_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(gguf_file(gguf_folder), tmp_path / "shared.gguf"))
    opened, freed = spy(monkeypatch, "llama_model_load_from_file"), spy(monkeypatch, "llama_model_free")
    loader, lora = LlamaLoader(), lora_file(gguf_folder)
    small = LoadParams(n_ctx=256, n_parallel=1, n_threads=1, warmup=False)
    large = replace(small, n_ctx=1024, n_parallel=4, cache_type_k="f32", lora=(ScaledFile(lora),))

    def load_entry(native: LoadParams) -> Weights:
        return loader.load(ModelSpec("tiny", path, native=native), lambda _: True)

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(load_entry, (small, large))
    assert len(opened) == 1
    other = load_entry(replace(small, mmap=False))
    path.unlink()
    shutil.copy(gguf_file(gguf_folder), path)
    newer = load_entry(small)
    assert (len(opened), len(first.runner().adapters), len(second.runner().adapters)) == (3, 0, 1)
    for weights in (second, first):
        (runner,) = cast(LlamaWeights, weights)._runners
        runner.close()
        assert freed == []
        weights.close()
    assert [arguments[0] for arguments, _ in freed] == [opened[0][1]]
    other.close()
    newer.close()
    assert {arguments[0] for arguments, _ in freed} == {model for _, model in opened}
    assert len(freed) == len(opened)


def test_a_model_entry_with_loaded_weights_needs_memory_for_its_context_only(tiny_path: Path) -> None:
    loader = LlamaLoader()
    native = LoadParams(n_ctx=1024, fit_ubatch=False, n_parallel=1, n_threads=1, warmup=False, mmap=False)
    spec = ModelSpec("tiny", tiny_path, native=native)
    fit = loader.fit(spec)
    footprint = fit.footprint[HOST]
    assert footprint.shared == footprint.weights > 0
    granted = {HOST: footprint.total - footprint.shared}
    with pytest.raises(ModelFailed, match="are left for it"):
        loader.fit(spec, granted)
    weights = loader.load(fit.spec, lambda _: True)
    assert loader.fit(spec, granted) == fit
    weights.close()


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("blk.0.ffn_down.weight", GGMLQuantizationType.Q8_1, "is of type 9, which is not for computing"),
        ("blk.0.ffn_down.weight", GGMLQuantizationType.Q8_K, "is of type 15, which is not for computing"),
        ("blk.0.ffn_down.weight", GGMLQuantizationType.I32, "is of type 26, which is not for computing"),
        ("blk.0.attn_norm.weight", GGMLQuantizationType.F64, "is of type 28, which is not for computing"),
        ("blk.0.attn_q.bias", GGMLQuantizationType.I32, "is of type 26, which is not for computing"),
        ("blk.0.ssm_d", GGMLQuantizationType.I32, "is of type 26, which is not for computing"),
        ("output_norm.weight", GGMLQuantizationType.Q8_0, "is a single row of the quantized type 8"),
    ],
)
def test_rejects_tensors_of_a_type_that_the_library_cannot_compute_with(
    tmp_path: Path, name: str, kind: GGMLQuantizationType, expected: str
) -> None:
    """It would abort in the warm-up."""
    writer = GGUFWriter(tmp_path / "odd.gguf", "llama")
    per_block, n_bytes = GGML_QUANT_SIZES[kind]
    row = np.zeros(256 // per_block * n_bytes, np.uint8)
    writer.add_tensor(name, row if name.endswith("_norm.weight") else np.stack([row, row]), raw_dtype=kind)
    finish(writer)
    assert f"'{name}' {expected}" in load_failure(tmp_path / "odd.gguf")


def test_rejects_a_character_without_a_byte_token(gguf_folder: Path, tmp_path: Path) -> None:
    """The library would abort. Some fine-tunes have vocabularies without all byte tokens."""
    whole = gguf_file(gguf_folder, TinyModel(tokenizer="spm", n_vocab=512))
    path = tmp_path / "no-emoji.gguf"
    path.write_bytes(whole.read_bytes().replace(b"<0xF0>", b"<0xZZ>"))
    with closing(load(whole)) as intact, closing(load(path)) as lacking:
        assert lacking.vocab.missing_bytes == {0xF0}
        assert not intact.vocab.missing_bytes
        text = "<s>Kit\u00f6s, \u20ac 1\n"
        tokens = lacking.vocab.tokenize(text, add_special=True, parse_special=True)
        assert tokens == intact.vocab.tokenize(text, add_special=True, parse_special=True)
        with pytest.raises(InvalidRequest, match="no token for '\U0001f600'"):
            lacking.vocab.tokenize("a \U0001f600", add_special=True, parse_special=False)
        assert lacking.vocab.turn_ends() == intact.vocab.turn_ends()
    with_mmproj = ModelSpec("tiny", path, mmproj=tmp_path / "any.gguf", native=LoadParams(n_ctx=256))
    with pytest.raises(ModelFailed, match="its vocabulary cannot spell every text, so it takes no mmproj"):
        LlamaLoader().load(with_mmproj, lambda _: True)


@pytest.mark.parametrize("name", ["blk.1.attn_norm.weight", "blk.1.post_ffw_norm_2.weight", "blk.1.attn_q.bias"])
def test_rejects_16_bit_norms_and_biases_of_layers_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The library would abort in the first decode: the CPU backend needs 32 bits."""
    tensors = {"blk.1.ffn_down.weight": np.zeros((2, 32), np.float16), name: np.zeros(32, np.float16)}
    path = write_gguf(tmp_path / "half.gguf", tensors, lambda writer: writer.add_block_count(2))
    assert f"the tensor '{name}' is of type 1, with which no CPU computes" in load_failure(path)
    files = check_files("tiny", path)
    monkeypatch.setattr("server.llama.weights.params.offloads", lambda native: True)
    for n_gpu_layers in (-1, 2):
        check_computable("tiny", LoadParams(n_gpu_layers=n_gpu_layers), files)
    for n_gpu_layers in (0, 1):  # the output counts as a layer
        with pytest.raises(ModelFailed):
            check_computable("tiny", LoadParams(n_gpu_layers=n_gpu_layers), files)


def test_rejects_byte_tokens_in_a_wordpiece_vocabulary(gguf_folder: Path) -> None:
    """The library would abort in the load."""
    path = gguf_file(gguf_folder, BERT)
    at = path.read_bytes().index(b"tokenizer.ggml.token_type") + len("tokenizer.ggml.token_type") + 16
    assert "tokenizer.ggml.token_type has a byte (6)" in load_failure(damaged(path, at, b"\6\0\0\0"))


def test_rejects_a_sliding_window_that_no_layer_uses(tmp_path: Path) -> None:
    """The library would abort."""

    def describe(writer: GGUFWriter) -> None:
        writer.add_sliding_window(8)
        writer.add_sliding_window_pattern([False, False])

    path = write_gguf(tmp_path / "none.gguf", {"token_embd.weight": np.zeros((2, 64))}, describe, "gemma3")
    assert "sliding_window_pattern is (False, False): no layer" in load_failure(path)


def test_rejects_a_split_model_with_the_name_of_the_missing_part(tmp_path: Path) -> None:
    part = write_gguf(tmp_path / "m-00001-of-00002.gguf", {}, lambda writer: writer.add_uint16("split.count", 2))
    assert "m-00002-of-00002.gguf" in load_failure(part)
    other = part.rename(tmp_path / "renamed.gguf")
    assert "00001-of-00002" in load_failure(other)


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ({"cache_type_k": "q3_0"}, "cache_type_k is 'q3_0'"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "needs flash attention"),
        ({"cache_type_v": "q8_0"}, "does not divide"),  # heads of 16 elements, blocks of 32
        ({"n_parallel": 0}, "n_parallel is 0"),
        ({"n_parallel": 257}, "n_parallel is 257"),
        ({"n_ctx": -1}, "n_ctx is -1"),
        ({"n_batch": 0}, "n_batch is 0"),
        ({"tensor_split": (1.0,) * 1000}, "tensor_split has 1000"),
    ],
)
def test_rejects_settings_on_which_the_library_aborts(tiny_path: Path, native: dict[str, Any], expected: str) -> None:
    assert expected in load_failure(tiny_path, **native)


@pytest.mark.parametrize(
    ("n_parallel", "n_ctx", "n_ctx_seq", "n_cells"),
    [(-1, 1024, 1024, 1024), (2, 1024, 512, 1024), (2, 0, 1024, 2048), (1, 4096, 2048, 2048)],
)
def test_slots_share_the_context(
    tiny_path: Path,
    n_parallel: int,
    n_ctx: int,
    n_ctx_seq: int,
    n_cells: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The default is four slots with unified KV. A slot never exceeds the training context; a warning says so."""
    with open_runner(tiny_path, n_parallel=n_parallel, n_ctx=n_ctx) as runner:
        assert (runner.info.unified, runner.info.n_ctx_seq, runner.info.n_cells) == (n_parallel < 0, n_ctx_seq, n_cells)
    assert ("was trained for 2048 tokens" in caplog.text) == (n_ctx > n_cells)


def test_weights_cannot_be_closed_before_their_contexts(tiny_path: Path) -> None:
    weights = load(tiny_path)
    first, second = weights.runner(), weights.runner()
    first.close()
    with pytest.raises(InternalError, match="1 open context"):
        weights.close()
    second.close()
    second.close()
    weights.close()
    weights.close()
    with pytest.raises(InternalError):
        weights.runner()
    with pytest.raises(InternalError):
        weights.vocab.tokenize("x", add_special=False, parse_special=False)


def test_calls_of_a_closed_runner_raise(tiny_path: Path) -> None:
    with open_runner(tiny_path) as runner:
        state = runner.seq_save(0)
    calls: list[Callable[[], object]] = [
        lambda: runner.decode([]),
        lambda: runner.seq_remove(0, 0),
        lambda: runner.seq_copy(0, 1),
        lambda: runner.seq_save(0),
        lambda: runner.seq_load(0, state, 0),
        lambda: runner.logprobs(0, 0, 0),
    ]
    for call in calls:
        with pytest.raises(InternalError, match="closed"):
            call()


def test_block_sizes_of_tensor_types_are_those_of_the_library() -> None:
    per_block, n_bytes = C._lib.ggml_blck_size, C._lib.ggml_type_size
    per_block.restype, n_bytes.restype = ctypes.c_int64, ctypes.c_size_t
    blocks = {kind: (per_block(kind), n_bytes(kind)) for kind in range(C.GGML_TYPE_COUNT)}
    assert {kind: sizes for kind, sizes in blocks.items() if sizes[0]} == BLOCKS


TEXTS = ["", " ", "hello world", "ünïcödé ☃ 🙂", "a\x00b", "\x00", "<|im_start|>user\n", "x" * 3000, "\r\n\t"]


def test_turn_ends_are_the_end_tokens_and_known_tokens_between_turns(
    tiny_vocab: LlamaVocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny_vocab.turn_ends() == tiny_vocab.eog  # it has no token between turns
    (start,) = tiny_vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    monkeypatch.setattr("server.llama.vocab._TURN_ENDS", ("<|im_start|>", "<|end|>", "a"))
    (letter,) = tiny_vocab.tokenize("a", add_special=False, parse_special=True)
    assert tiny_vocab.turn_ends() == tiny_vocab.eog | {start, letter}


@pytest.mark.parametrize("token", [-1, 400, 1 << 31])
def test_rejects_token_ids_outside_the_vocabulary(tiny_vocab: LlamaVocab, token: int) -> None:
    with pytest.raises(InternalError):
        tiny_vocab.piece(token)


@settings(max_examples=200, deadline=None)
@example(text="a\ud83d\ude42b\ud800c")
@given(text=st.text())
def test_any_text_survives_tokenization(tiny_vocab: LlamaVocab, text: str) -> None:
    tokens = tiny_vocab.tokenize(text, add_special=False, parse_special=False)
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    assert tiny_vocab.detokenize(tokens) == expected


def test_threads_can_tokenize_concurrently(tiny_vocab: LlamaVocab) -> None:
    texts = [f"{text} {i}" for i in range(40) for text in TEXTS]

    def round_trip(text: str) -> bytes:
        return tiny_vocab.detokenize(tiny_vocab.tokenize(text, add_special=False, parse_special=False))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(round_trip, texts)) == [text.encode() for text in texts]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), add_special=st.booleans(), parse_special=st.booleans())
def test_a_text_that_is_tokenized_in_pieces_has_the_same_tokens(
    tiny_vocab: LlamaVocab, data: st.DataObject, add_special: bool, parse_special: bool
) -> None:
    part = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|", "|>", " ", "\n\n", "hello", "é", "1"])
    parts = data.draw(st.lists(st.tuples(part, st.integers(1, 40)), min_size=50, max_size=200))
    text = "".join(unit * times for unit, times in parts)
    whole = tiny_vocab._tokenize(text.encode(), add_special, parse_special)
    assert tiny_vocab.tokenize(text, add_special=add_special, parse_special=parse_special) == whole


def test_a_text_full_of_special_tokens_takes_linear_time(tiny_vocab: LlamaVocab) -> None:
    n = 400_000  # without splitting, the library needs an hour
    tokens = tiny_vocab.tokenize("<|im_start|>x" * n, add_special=False, parse_special=True)
    assert tokens == [395, ord("x")] * n or len(tokens) == 2 * n


INFO_FIELDS = (
    *("ftype", "n_vocab", "n_ctx_train", "n_embd", "n_params", "size", "generates", "embeds"),
    *("chat_template", "built_in_template", "metadata"),
)


@pytest.mark.parametrize("name", ["demo.gguf", "demo-embed.gguf"])
def test_the_description_from_the_header_equals_the_librarys(name: str) -> None:
    spec, loader = ModelSpec("m", Path(ROOT / "models" / name)), LlamaLoader()
    described = loader.describe(spec)
    with closing(loader.load(spec, lambda _: True)) as weights:
        info = weights.info
    for name in INFO_FIELDS:
        assert getattr(described, name) == getattr(info, name), name
