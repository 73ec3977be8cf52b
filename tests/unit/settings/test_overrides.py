"""``override_tensor``, ``override_kv`` and their kin: what they say, and every mistake in them."""

import pytest

from server.errors import ConfigError
from server.options.values import metadata_override, tensor_override
from server.pool.spec import LoadParams, MetadataOverride, TensorOverride
from tests.unit.settings.builders import spec


def mistake(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        spec(*arguments)
    return caught.value.message


def test_a_pattern_goes_up_to_the_last_equals_sign() -> None:
    assert tensor_override(r"blk\.\d+(?=\.ffn)=CPU") == TensorOverride(r"blk\.\d+(?=\.ffn)", "CPU")


def test_flags_add_up_in_their_order() -> None:
    native = spec("-ot", "up=CPU,down=CUDA0", "--override-tensor", "gate=CPU").native
    assert native.tensor_overrides == tuple(
        TensorOverride(*pair) for pair in (("up", "CPU"), ("down", "CUDA0"), ("gate", "CPU"))
    )


def test_variables_set_them_too() -> None:
    env = {f"LLAMA_ARG_{name}": value for name, value in (("OVERRIDE_TENSOR", "a=CPU"), ("N_CPU_MOE", "3"))}
    env |= {"LLAMA_ARG_CPU_MOE": "1", "LLAMA_ARG_N_CPU_FFN": "2", "LLAMA_ARG_NO_HOST": "1", "LLAMA_ARG_OFFLINE": "1"}
    native = spec(env=env).native
    assert native.tensor_overrides == (TensorOverride("a", "CPU"),)
    assert (native.cpu_moe, native.n_cpu_moe, native.n_cpu_ffn, native.no_host) == (True, 3, 2, True)


def test_nothing_is_overruled_by_default() -> None:
    native, plain = spec("--offline").native, LoadParams()
    for name in ("tensor_overrides", "cpu_moe", "n_cpu_moe", "n_cpu_ffn", "no_host", "metadata_overrides"):
        assert getattr(native, name) == getattr(plain, name)


def test_a_draft_model_has_tensors_of_its_own_and_its_targets_metadata() -> None:
    made = spec("-md", "d.gguf", "-ot", "a=CPU", "-cmoe", "-ncffn", "4", "--override-kv", "k=int:1")
    assert made.draft is not None
    native = made.draft.native
    assert (native.tensor_overrides, native.cpu_moe, native.n_cpu_moe, native.n_cpu_ffn) == ((), False, 0, 0)
    assert native.metadata_overrides == made.native.metadata_overrides  # llama-server's rule
    made = spec("-md", "d.gguf", "-otd", "b=CPU", "-cmoed", "-ncmoed", "4")
    assert made.draft is not None
    native = made.draft.native
    assert (native.tensor_overrides, native.cpu_moe, native.n_cpu_moe) == ((TensorOverride("b", "CPU"),), True, 4)
    assert made.native.tensor_overrides == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("exps", "should be PATTERN=BUFFER_TYPE, as in exps=CPU"),
        ("=CPU", "should be PATTERN=BUFFER_TYPE"),
        ("exps=", "should be PATTERN=BUFFER_TYPE"),
        ("(exps=CPU", "has the pattern '(exps', which is no regular expression: missing )"),
        ("*=CPU", "has the pattern '*' with '*', which is not supported there"),
        ("x" * 513 + "=CPU", "has a pattern of more than 512 characters"),
        ("(){30000}=CPU", "with '){30000}': only ? may follow a group"),  # the library has no stack for it
        (".*.*z=CPU", "which repeats too much"),
    ],
)
def test_patterns_that_the_library_could_not_bear_are_refused(text: str, problem: str) -> None:
    message = mistake("-ot", text)
    assert message.startswith("-ot: invalid value ")
    assert problem in message


@pytest.mark.parametrize(
    "pattern",
    [
        ".*",
        r"blk\.(1[0-9]|2[0-5])\.ffn_(up|down|gate)_exps",
        r"\.ffn_(up|down|gate|gate_up)_(ch|)exps",
        r"(blk|dec)\.[[:digit:]]+",
        r"[(*+)]+x",
        r"\(a*\)+",
        r"attn_[kqv]\.weight$",
    ],
)
def test_patterns_as_people_write_them_are_taken(pattern: str) -> None:
    assert tensor_override(pattern + "=CPU").pattern == pattern


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=int:-5", -5),
        ("k=float:1e6", 1e6),
        ("k=float:3", 3.0),
        ("k=bool:true", True),
        ("k=bool:false", False),
        ("k=str:a=b:c", "a=b:c"),
        ("k=str:", ""),
        ("k=str:" + "x" * 127, "x" * 127),
    ],
)
def test_a_value_has_the_type_that_it_names(text: str, value: object) -> None:
    found = metadata_override(text)
    assert found == MetadataOverride("k", value)  # type: ignore[arg-type]
    assert type(found.value) is type(value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("k", "should be KEY=TYPE:VALUE with one of the types int, float, bool, str"),
        ("k=5", "should be KEY=TYPE:VALUE"),
        ("=int:5", "should be KEY=TYPE:VALUE"),
        ("k=long:5", "has the type 'long' for 'k'"),
        ("k=int:5.5", "has '5.5' for 'k', which is no int"),
        ("k=int:" + "9" * 19, "which is no int"),
        ("k=float:nan", "has 'nan' for 'k', which is no float"),
        ("k=float:inf", "which is no float"),
        ("k=bool:1", "has '1' for 'k', which is no bool"),
        ("k=str:" + "ä" * 64, "has a text of more than 127 bytes for 'k'"),
        ("k" * 128 + "=int:1", "has a key of more than 127 bytes"),
        ("general.architecture=str:llama", "has 'general.architecture', which says how the file is to be read"),
        ("tokenizer.ggml.model=str:none", "has 'tokenizer.ggml.model', which says how the tokens are to be read"),
        ("split.count=int:2", "has 'split.count', which says how the file is to be read"),
        ("k=int:1,k=int:2", "has 'k' twice"),
    ],
)
def test_mistakes_in_metadata_are_named(text: str, problem: str) -> None:
    message = mistake("--override-kv", text)
    assert message.startswith("--override-kv: invalid value ")
    assert problem in message


def test_quotes_protect_a_comma_and_flags_add_up() -> None:
    native = spec("--override-kv", '"a=str:x,y",b=int:1', "--override-kv", "c=bool:true").native
    assert native.metadata_overrides == tuple(MetadataOverride(*pair) for pair in (("a", "x,y"), ("b", 1), ("c", True)))


@pytest.mark.parametrize("flag", ["-ncmoe", "-ncffn", "-ncmoed"])
def test_layers_are_counted_from_zero(flag: str) -> None:
    assert "should be greater than or equal to 0" in mistake(flag, "-1")
