"""Tensor and metadata overrides, and metadata on which the library would abort, with native models."""

from pathlib import Path

import pytest

from server.llama.devices import Device, buffer_types
from server.llama.files.model_file import check_files
from server.llama.weights import params as weight_params
from server.llama.weights.params import override_array, overrides
from server.options.values import metadata_override, tensor_override
from server.pool.spec import LoadParams, MetadataOverride, TensorOverride
from tests.model.native_fixtures import generate, load, load_failure, open_runner, prompt_tokens
from tests.support.ggufs import BERT, EXPERTS, HYBRID, SLIDING_WINDOW, gguf_file


def metadata(*texts: str) -> tuple[MetadataOverride, ...]:
    return tuple(map(metadata_override, texts))


def tensors(*texts: str) -> tuple[TensorOverride, ...]:
    return tuple(map(tensor_override, texts))


@pytest.mark.parametrize(
    "native", [{"tensor_overrides": tensors(".*=CPU")}, {"cpu_moe": True}, {"n_cpu_moe": 99}, {"no_host": True}]
)
def test_tensors_on_the_cpu_give_the_same_tokens(gguf_folder: Path, native: dict[str, object]) -> None:
    path = gguf_file(gguf_folder, EXPERTS)
    with open_runner(path) as plain, open_runner(path, **native) as other:
        tokens = prompt_tokens(plain.vocab)
        assert generate(plain, tokens, 20) == generate(other, tokens, 20)


def test_n_cpu_moe_moves_the_expert_tensors_of_the_first_layers(
    gguf_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(1, "llamapool.llama"):
        load(gguf_file(gguf_folder, EXPERTS), n_cpu_moe=1).close()
    moved = [r.getMessage().split()[1] for r in caplog.records if "buffer type overridden to CPU" in r.getMessage()]
    assert moved
    assert all(name.startswith("blk.0.ffn_") and "_exps" in name for name in moved)


def test_configured_patterns_precede_those_of_options_without_missing_layers(gguf_folder: Path) -> None:
    header = check_files("m", gguf_file(gguf_folder, EXPERTS)).header
    native = LoadParams(tensor_overrides=tensors("up=CPU"), cpu_moe=True, n_cpu_moe=99, n_cpu_ffn=1)
    patterns = [each.pattern for each in overrides(native, header)]
    experts = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
    dense = r"blk\.0\.ffn_(up|down|gate)\."
    assert patterns == ["up", experts, rf"blk\.0{experts}", rf"blk\.1{experts}", dense]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x=VRAM", "override_tensor: 'VRAM' is no buffer type of this machine and build; known: CPU"),
        ("(?=a)?b=CPU", "Mismatched '(' and ')' in regular expression"),
    ],
)
def test_rejects_tensor_overrides_on_which_the_library_aborts(tiny_path: Path, text: str, problem: str) -> None:
    assert problem in load_failure(tiny_path, tensor_overrides=tensors(text))


def test_rejects_overrides_of_embeddings_to_a_gpu_and_to_devices_of_others(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = Device("CUDA0", 1, 1)
    real_types = buffer_types()
    monkeypatch.setattr(weight_params, "check_buffer_types", lambda names: None)
    monkeypatch.setattr(weight_params, "buffer_types", lambda: {**real_types, "CUDA0": (gpu, 2)})
    monkeypatch.setattr("server.llama.devices.devices", lambda: [gpu])
    files = check_files("m", tiny_path)
    for pattern in (".*", "[[:alpha:]]+_embd"):
        with pytest.raises(ValueError, match=r"puts token_embd\.weight on CUDA0, and it must stay"):
            override_array(LoadParams(tensor_overrides=tensors(f"{pattern}=CUDA0")), files)
    placed = override_array(LoadParams(tensor_overrides=tensors("token_embd.weight=CPU", ".*=CUDA0")), files)
    assert placed is not None
    assert [entry.buft for entry in placed] == [real_types["CPU"][1], 2, None]
    for native in (
        LoadParams(tensor_overrides=tensors("blk=CUDA0"), devices=((),)),
        LoadParams(tensor_overrides=tensors("blk=CUDA0"), split_mode="none", main_gpu=1),
    ):
        with pytest.raises(ValueError, match="belongs to CUDA0, which is not among the model's devices"):
            override_array(native, files)


def test_metadata_overrides_replace_values_of_the_file(tiny_path: Path) -> None:
    values = metadata("tokenizer.ggml.add_bos_token=bool:false", "llama.context_length=int:512")
    plain, changed = load(tiny_path), load(tiny_path, metadata_overrides=values, n_ctx=0, n_parallel=1)
    assert (plain.info.add_bos, plain.info.n_ctx_train) == (True, 2048)
    assert (changed.info.add_bos, changed.info.n_ctx_train) == (False, 512)
    runner = changed.runner()
    assert runner.info.n_cells == 512
    assert plain.info.fingerprint != changed.info.fingerprint  # saved slots of one cannot be restored to the other
    runner.close()
    plain.close()
    changed.close()


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
        ("llama.attention.head_count=int:65536", "llama.attention.head_count is 65536, outside 0 to 65535"),
        ("llama.expert_used_count=int:5", "llama.expert_used_count is 5, outside 1 to 4"),
        ("llama.expert_used_count=int:0", "llama.expert_used_count is 0, outside 1 to 4"),
        ("llama.expert_count=int:1", "llama.expert_used_count is 2, outside 1 to 1"),
        ("llama.expert_group_count=int:3", "llama.expert_group_count is 3; 4 experts can't be in as many groups"),
        ("llama.expert_group_count=int:4", "llama.expert_group_count is 4; 4 experts can't be in as many groups"),
        ("llama.expert_group_count=int:-1", "llama.expert_group_count is -1; 4 experts"),
        ("llama.expert_group_count=int:2", "llama.expert_group_used_count is 0, outside 1 to 1"),
        ("llama.nextn_predict_layers=int:3", "llama.nextn_predict_layers is 3, outside 0 to 2"),
        ("llama.nextn_predict_layers=int:-1", "llama.nextn_predict_layers is -1, outside 0 to 2"),
        ("llama.rope.scaling.type=str:yarm", "llama.rope.scaling.type is 'yarm', none of none, linear, yarn, longrope"),
        ("jamba.ssm.inner_size=int:65", "jamba.ssm.inner_size is 65, not twice the embedding's 64"),
        ("bert.embedding_length_out=int:128", "embedding_length_out is 128, more than the 64 values of an embedding"),
        ("gemma3.rope.dimension_count_swa=int:0", "gemma3.rope.dimension_count_swa is 0, outside 2 to 16"),
        ("gemma3.rope.dimension_count_swa=int:7", "gemma3.rope.dimension_count_swa is odd"),
        ("gemma3.rope.dimension_count_swa=int:18", "gemma3.rope.dimension_count_swa is 18, outside 2 to 16"),
        ("jamba.attention.head_count=int:255", "so many heads of 16 are not the embedding's 64"),
        ("jamba.attention.key_length=int:255", "jamba.attention.head_count is 4: so many heads of 255 are not the"),
    ],
)
def test_rejects_metadata_that_the_library_ignores_or_aborts_on(gguf_folder: Path, text: str, problem: str) -> None:
    model = {"bert": BERT, "gemma3": SLIDING_WINDOW, "jamba": HYBRID}.get(text.partition(".")[0], EXPERTS)
    assert problem in load_failure(gguf_file(gguf_folder, model), metadata_overrides=metadata(text))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"expert_used_count", b"expert_uzed_count", "llama.expert_used_count is 0, outside 1 to 4"),
        (b"\x04" + b"\0" * 7 + b"gpt2", b"\x04" + b"\0" * 7 + b"none", "'none': a file without a vocabulary"),
    ],
)
def test_rejects_files_without_necessary_metadata(
    gguf_folder: Path, tmp_path: Path, old: bytes, new: bytes, problem: str
) -> None:
    path = tmp_path / "incomplete.gguf"
    path.write_bytes(gguf_file(gguf_folder, EXPERTS).read_bytes().replace(old, new))
    assert problem in load_failure(path)


@pytest.mark.parametrize(
    "texts",
    [
        ("llama.expert_group_count=int:2", "llama.expert_group_used_count=int:1"),
        ("llama.expert_group_count=int:1",),
        ("llama.rope.scaling.type=str:yarn",),
        ("llama.nextn_predict_layers=int:0",),
    ],
)
def test_accepts_metadata_at_the_limits(gguf_folder: Path, texts: tuple[str, ...]) -> None:
    load(gguf_file(gguf_folder, EXPERTS), metadata_overrides=metadata(*texts)).close()
