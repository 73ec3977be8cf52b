"""Files that are good, broken, missing or foreign; every failure is a ModelFailed and the process lives."""

import ctypes
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from server.errors import InternalError, ModelFailed
from server.llama.context.params import CACHE_TYPES
from server.llama.files.gguf_header import BLOCKS, read_header
from server.llama.fit.memory import kv_bytes_per_cell
from server.llama.library import C
from server.llama.loader import LlamaLoader
from server.pool.spec import ModelSpec
from tests.model.native_fixtures import Entry, generate, load, open_runner, prompt_tokens
from tests.support.ggufs import CHATML, TinyModel, damaged, gguf_file, truncated
from tests.support.ggufs.model import Arch

_KV_MIB = re.compile(r"KV buffer size = +([0-9.]+) MiB")


def failure(path: Path, **native: object) -> str:
    with pytest.raises(ModelFailed) as caught:
        load(path, **native).runner()
    assert caught.value.model == "tiny"
    return caught.value.reason


def test_a_loaded_model_describes_itself(tiny_path: Path) -> None:
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
    ("arch", "said"),
    [
        ("t5", "the model is an encoder and a decoder: such can't be served"),  # llama-server ends with an assertion
        ("dream", "keeps no memory of its context, so it cannot generate"),  # llama-server says 500 to every request
    ],
)
def test_kinds_of_models_that_nobody_serves(arch: Arch, said: str, gguf_folder: Path) -> None:
    assert said in failure(gguf_file(gguf_folder, TinyModel(arch=arch, n_head_kv=4)))


def test_a_chat_template_of_any_length_is_read_whole(gguf_folder: Path) -> None:
    template = "{# " + "long " * 5000 + "#}" + CHATML
    weights = load(gguf_file(gguf_folder, TinyModel(chat_template=template)))
    assert weights.info.chat_template == template
    assert weights.info.metadata["tokenizer.chat_template"] == template
    weights.close()


def test_an_f16_file_is_named_as_llama_server_names_it(gguf_folder: Path) -> None:
    weights = load(gguf_file(gguf_folder, TinyModel(ftype="F16")))
    assert weights.info.ftype == "F16"
    weights.close()


def test_progress_runs_from_zero_to_one(tiny_path: Path) -> None:
    seen: list[float] = []
    spec = ModelSpec("tiny", tiny_path)
    LlamaLoader().load(spec, lambda fraction: seen.append(fraction) is None).close()  # type: ignore[func-returns-value]
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_progress_can_stop_the_load(tiny_path: Path) -> None:
    with pytest.raises(ModelFailed, match="stopped"):
        LlamaLoader().load(ModelSpec("tiny", tiny_path), lambda _fraction: False)


def test_an_error_in_the_progress_function_is_not_swallowed(tiny_path: Path) -> None:
    def broken(_fraction: float) -> bool:
        raise ZeroDivisionError

    with pytest.raises(InternalError) as caught:
        LlamaLoader().load(ModelSpec("tiny", tiny_path), broken)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert failure(tmp_path / "none.gguf").endswith("none.gguf does not exist")


def test_a_folder_is_not_a_model(tmp_path: Path) -> None:
    assert "folder" in failure(tmp_path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"x" * 5000, b"GGUF" + b"\xff" * 5000, b"GGUF" + b"\0" * 5000])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(content)
    assert str(path) in failure(path)


@pytest.mark.parametrize("keep", [0.0001, 0.01, 0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused_before_the_library_reads_it(tiny_path: Path, keep: float) -> None:
    assert "truncated" in failure(truncated(tiny_path, keep)) or keep < 0.001


def test_an_unknown_architecture_is_the_reason_given(gguf_folder: Path) -> None:
    assert "unknown model architecture: 'unknown'" in failure(gguf_file(gguf_folder, TinyModel(arch="unknown")))


def test_a_damaged_hyperparameter_is_refused(tiny_path: Path) -> None:
    at = tiny_path.read_bytes().index(b"llama.block_count") + len("llama.block_count") + 4
    assert "block_count" in failure(damaged(tiny_path, at, b"\xff\xff\xff\xff"))
    assert failure(damaged(tiny_path, at, b"\x05"))


def test_a_missing_part_of_a_split_model_is_named(tiny_path: Path, tmp_path: Path) -> None:
    from gguf import GGUFReader, GGUFWriter

    part = tmp_path / "m-00001-of-00002.gguf"
    writer = GGUFWriter(part, "llama")
    writer.add_uint16("split.count", 2)
    writer.add_uint16("split.no", 0)
    writer.add_tensor("token_embd.weight", GGUFReader(tiny_path).tensors[0].data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "m-00002-of-00002.gguf" in failure(part)
    other = part.rename(tmp_path / "renamed.gguf")
    assert "00001-of-00002" in failure(other)


def test_the_process_serves_on_after_failures(tiny_path: Path, tmp_path: Path) -> None:
    failure(tmp_path / "none.gguf")
    failure(truncated(tiny_path, 0.7))
    with open_runner(tiny_path) as runner:
        assert len(generate(runner, prompt_tokens(runner.vocab), 5)) == 5


def test_the_library_log_reaches_logging_in_whole_lines(tiny_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "llamapool.llama"):
        load(tiny_path).close()
    assert any("general.architecture" in record.getMessage() for record in caplog.records)
    assert all("\n" not in record.getMessage() for record in caplog.records)


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
        ({"n_ctx": 1 << 30}, "GiB of memory are available"),
        ({"tensor_split": (1.0,) * 1000}, "tensor_split has 1000"),
    ],
)
def test_settings_that_the_library_would_abort_on_are_refused(
    tiny_path: Path, native: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.llama.fit.memory.available_bytes", lambda: 8 << 30)  # whatever this machine has
    assert expected in failure(tiny_path, **native)


def test_automatic_slots_are_four_and_unified(tiny_path: Path) -> None:
    with open_runner(tiny_path, n_parallel=-1, n_ctx=1024) as runner:
        assert (runner.info.n_seq, runner.info.unified) == (4, True)
        assert (runner.info.n_ctx_seq, runner.info.n_cells) == (1024, 1024)


def test_a_given_number_of_slots_divides_the_context(tiny_path: Path) -> None:
    with open_runner(tiny_path, n_parallel=2, n_ctx=1024) as runner:
        assert (runner.info.unified, runner.info.n_ctx_seq, runner.info.n_cells) == (False, 512, 1024)


def test_a_context_of_zero_is_the_training_context(tiny_path: Path) -> None:
    with open_runner(tiny_path, n_parallel=2, n_ctx=0) as runner:
        assert runner.info.n_ctx_seq == 1024


def test_a_slot_never_exceeds_the_training_context(tiny_path: Path) -> None:
    with open_runner(tiny_path, n_parallel=1, n_ctx=4096) as runner:
        assert runner.info.n_ctx_seq == 2048


@pytest.mark.parametrize("native", [{"warmup": True}, {"mmap": False}, {"check_tensors": True}, {"flash_attn": "on"}])
def test_ways_to_load_give_the_same_tokens(tiny_path: Path, native: dict[str, object]) -> None:
    with open_runner(tiny_path) as plain, open_runner(tiny_path, **native) as other:
        tokens = prompt_tokens(plain.vocab)
        assert generate(plain, tokens, 20) == generate(other, tokens, 20)


def test_weights_refuse_to_close_under_an_open_context(tiny_path: Path) -> None:
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


def test_every_call_after_close_raises(tiny_path: Path) -> None:
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


def test_two_instances_share_weights_and_do_not_disturb_each_other(tiny_path: Path) -> None:
    weights = load(tiny_path)
    first, second = weights.runner(), weights.runner()
    tokens = prompt_tokens(weights.vocab)
    alone = generate(first, tokens, 10)
    generate(second, tokens[:3], 10)
    assert generate(first, tokens, 10) == alone == generate(second, tokens, 10)
    first.close()
    second.close()
    weights.close()


def test_the_cache_of_a_token_is_estimated_as_the_library_allocates_it(
    tiny_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    per_cell = kv_bytes_per_cell(read_header(tiny_path), CACHE_TYPES["f16"], CACHE_TYPES["f16"])
    with caplog.at_level(logging.DEBUG, "llamapool.llama"), open_runner(tiny_path, n_ctx=4096):
        sizes = [float(found[1]) for r in caplog.records if (found := _KV_MIB.search(r.getMessage()))]
    assert sum(sizes) * 2**20 == pytest.approx(4096 * per_cell, rel=0.02)


def test_block_sizes_of_tensor_types_are_the_librarys() -> None:
    per_block, n_bytes = C._lib.ggml_blck_size, C._lib.ggml_type_size
    per_block.restype, n_bytes.restype = ctypes.c_int64, ctypes.c_size_t
    of_library = {kind: (per_block(kind), n_bytes(kind)) for kind in range(C.GGML_TYPE_COUNT)}
    assert {kind: sizes for kind, sizes in of_library.items() if sizes[0]} == BLOCKS


def test_a_full_cache_is_not_worth_a_line_in_the_log(tiny_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING, "llamapool.llama"),
        open_runner(tiny_path, n_parallel=1, n_ctx=256) as runner,
    ):
        caplog.clear()
        assert runner.decode([Entry(0, 0, [1] * 256)])
        assert runner.decode([Entry(0, 256, [1])]) is False
        assert not caplog.records
