"""What the server's own process does of an isolated model asks no device for anything that needs a context on it."""

import pytest

from server.llama import devices
from server.llama.loader import open_loader
from server.pool.spec import LoadParams, ModelSpec
from tests.support.real_server import ROOT


@pytest.mark.parametrize(
    "native",
    [
        LoadParams(),
        LoadParams(cpu_moe=True),
        LoadParams(n_cpu_moe=1),
        LoadParams(n_cpu_ffn=1),
        LoadParams(split_mode="tensor"),
    ],
    ids=["default", "cpu_moe", "n_cpu_moe", "n_cpu_ffn", "tensor split"],
)
def test_the_native_side_of_the_servers_process_does_not_look_at_a_devices_memory(
    monkeypatch: pytest.MonkeyPatch, native: LoadParams
) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("it would open a context")

    for name in ("_memory", "_buffer_type"):
        monkeypatch.setattr(devices, name, refused)
    here, spec = open_loader(), ModelSpec("demo", ROOT / "models" / "demo.gguf", native=native)
    assert here.describe(spec).n_vocab
    assert not here.media_kinds(spec)
    here.uses_devices(spec)
    vocabulary = here.vocabulary(spec)
    assert vocabulary.vocab.tokenize("Hi", add_special=False, parse_special=False)
    vocabulary.close()
