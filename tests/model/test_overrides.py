"""Tensors in other buffers and overruled metadata, over the real library."""

import logging
from pathlib import Path

import pytest

from server.errors import ModelFailed
from server.llama.gguf_header import GgufHeader
from server.llama.model_file import check_files
from server.llama.tensor_placement import override_array, overrides
from server.options.overrides import metadata_override, tensor_override
from server.pool.spec import LoadParams, MetadataOverride, TensorOverride
from tests.ggufs import EXPERTS, gguf_file
from tests.model.native_fixtures import generate, load, open_runner, prompt_tokens


def metadata(*texts: str) -> tuple[MetadataOverride, ...]:
    return tuple(map(metadata_override, texts))


def tensors(*texts: str) -> tuple[TensorOverride, ...]:
    return tuple(map(tensor_override, texts))


@pytest.mark.parametrize(
    "native", [{"tensor_overrides": tensors(".*=CPU")}, {"cpu_moe": True}, {"n_cpu_moe": 99}, {"no_host": True}]
)
def test_what_stays_on_the_processor_computes_the_same(gguf_folder: Path, native: dict[str, object]) -> None:
    path = gguf_file(gguf_folder, EXPERTS)
    with open_runner(path) as plain, open_runner(path, **native) as other:
        tokens = prompt_tokens(plain.vocab)
        assert generate(plain, tokens, 20) == generate(other, tokens, 20)


def test_the_library_overrides_every_tensor_that_a_pattern_finds(
    gguf_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(1, "llamapool.llama"):
        load(gguf_file(gguf_folder, EXPERTS), n_cpu_moe=1).close()
    moved = [r.getMessage().split()[1] for r in caplog.records if "buffer type overridden to CPU" in r.getMessage()]
    assert moved
    assert all(name.startswith("blk.0.ffn_") and "_exps" in name for name in moved)


def test_the_configured_patterns_count_first_and_missing_layers_are_left_out(gguf_folder: Path) -> None:
    header = check_files("m", gguf_file(gguf_folder, EXPERTS)).header
    native = LoadParams(tensor_overrides=tensors("up=CPU"), cpu_moe=True, n_cpu_moe=99, n_cpu_ffn=1)
    patterns = [each.pattern for each in overrides(native, header)]
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    dense = r"blk\.0\.ffn_(up|down|gate)\."
    assert patterns == ["up", experts, rf"blk\.0{experts}", rf"blk\.1{experts}", dense]


def test_a_pattern_without_a_tensor_is_reported(tiny_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load(tiny_path, tensor_overrides=tensors("exps=CPU")).close()
    assert "override_tensor exps has no effect: no tensor's name has a match" in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x=VRAM", "override_tensor: 'VRAM' is no buffer type of this machine and build; known: CPU"),
        ("(?P<name>up)=CPU", "Invalid '(?...)' zero-width assertion in regular expression"),  # Python's, not theirs
        ("(?<=a)b=CPU", "Invalid '(?...)' zero-width assertion in regular expression"),
    ],
)
def test_what_the_library_cannot_place_is_refused_and_the_process_lives(
    tiny_path: Path, text: str, problem: str
) -> None:
    with pytest.raises(ModelFailed) as caught:
        load(tiny_path, tensor_overrides=tensors(text))
    assert problem in caught.value.reason


def test_rows_are_looked_up_on_the_processor_only(tiny_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.llama import tensor_placement as placement
    from server.llama.devices import Device, buffer_types

    gpu = Device("CUDA0", 1, 1)
    here = buffer_types()
    monkeypatch.setattr(placement, "check_buffer_types", lambda names: None)
    monkeypatch.setattr(placement, "buffer_types", lambda: {**here, "CUDA0": (gpu, 2)})
    monkeypatch.setattr(placement, "devices", lambda: [gpu])
    files = check_files("m", tiny_path)
    with pytest.raises(ValueError, match=r"puts token_embd\.weight on CUDA0, and it must stay"):
        override_array(LoadParams(tensor_overrides=tensors(".*=CUDA0")), files)
    placed = override_array(LoadParams(tensor_overrides=tensors("token_embd.weight=CPU", ".*=CUDA0")), files)
    assert placed is not None
    assert [entry.buft for entry in placed] == [here["CPU"][1], 2, None]
    for native in (
        LoadParams(tensor_overrides=tensors("blk=CUDA0"), devices=((),)),
        LoadParams(tensor_overrides=tensors("blk=CUDA0"), split_mode="none", main_gpu=1),
    ):
        with pytest.raises(ValueError, match="belongs to CUDA0, which is not among the model's devices"):
            override_array(native, files)


def test_metadata_overrules_the_file(tiny_path: Path) -> None:
    values = metadata("tokenizer.ggml.add_bos_token=bool:false", "llama.context_length=int:512")
    plain, changed = load(tiny_path), load(tiny_path, metadata_overrides=values, n_ctx=0, n_parallel=1)
    assert (plain.info.add_bos, plain.info.n_ctx_train) == (True, 2048)
    assert (changed.info.add_bos, changed.info.n_ctx_train) == (False, 512)
    runner = changed.runner()
    assert runner.info.n_cells == 512
    assert plain.info.fingerprint != changed.info.fingerprint  # its saved slots fit nobody else
    runner.close()
    plain.close()
    changed.close()


def test_a_float_changes_what_is_computed(tiny_path: Path) -> None:
    values = metadata("llama.rope.freq_base=float:50.5")
    with open_runner(tiny_path) as plain, open_runner(tiny_path, metadata_overrides=values) as other:
        tokens = prompt_tokens(plain.vocab)
        assert generate(plain, tokens, 20) != generate(other, tokens, 20)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("llama.context_length=float:5", "'llama.context_length' is of type u32 in the file, not float"),
        ("llama.rope.freq_base=int:5", "'llama.rope.freq_base' is of type f32 in the file, not int"),
        ("tokenizer.ggml.add_bos_token=int:1", "'tokenizer.ggml.add_bos_token' is of type bool in the file, not int"),
        ("tokenizer.ggml.tokens=str:a", "'tokenizer.ggml.tokens' is of type [string] in the file, not str"),
        ("llama.context_length=int:-1", "'llama.context_length' is -1, less than 0"),
        ("llama.context_length=int:2147483648", "'llama.context_length' is 2147483648, more than 32 bits"),
        ("llama.block_count=int:513", "llama.block_count is 513, outside 1 to 512"),
        ("llama.expert_used_count=int:5", "llama.expert_used_count is 5, outside 1 to 4"),
        ("llama.expert_used_count=int:0", "llama.expert_used_count is 0, outside 1 to 4"),
        ("llama.expert_count=int:1", "llama.expert_used_count is 2, outside 1 to 1"),
    ],
)
def test_values_that_would_be_ignored_or_end_the_process_are_refused(
    gguf_folder: Path, text: str, problem: str
) -> None:
    with pytest.raises(ModelFailed) as caught:
        load(gguf_file(gguf_folder, EXPERTS), metadata_overrides=metadata(text))
    assert problem in caught.value.reason


def test_a_key_that_the_library_does_not_read_is_reported(tiny_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    values = metadata("llama.context_lenght=int:5", "tokenizer.ggml.add_bos_token=bool:false")
    with caplog.at_level(logging.WARNING, "llamapool.llama"):
        load(tiny_path, metadata_overrides=values).close()
    assert "override_kv llama.context_lenght has no effect" in caplog.text
    assert "add_bos_token" not in caplog.text


def test_the_checks_of_the_file_see_the_overruled_value(tiny_path: Path) -> None:
    header: GgufHeader = check_files("m", tiny_path, metadata("llama.pooling_type=int:1")).header
    assert header.integer("llama.pooling_type") == 1
