"""What is chosen for a model of 8 layers on machines with one, two and no devices; the sizes are made up."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import ModelFailed
from server.llama.fit import Limits, ModelShape, choose, holds
from server.pool.memory import HOST, Bytes, Fit, Footprint
from server.pool.spec import ALL_THAT_FIT, LoadParams, ModelSpec

GIB = 1 << 30
N_LAYER, N_CTX_TRAIN = 8, 131072
DENSE = ModelShape(N_CTX_TRAIN, N_LAYER, has_experts=False)
EXPERTS = replace(DENSE, has_experts=True)
PER_CELL = GIB // 8192  # 16 GiB for the whole context
SEPARATE = LoadParams(n_parallel=4, kv_unified=False)


class Machine:
    """A layer weighs one GiB, three quarters of it experts if there are any; the last is the output's."""

    def __init__(self, *devices: str, experts: bool = False, per_token: int = GIB // 64 // 512) -> None:
        self.devices = devices
        self.per_token = per_token  # bytes of a layer's buffers
        self.experts = experts
        self.n_measured = 0

    def __call__(self, native: LoadParams) -> Footprint:
        self.n_measured += 1
        n_layer = N_LAYER + 1
        n_off = n_layer if native.n_gpu_layers < 0 else min(native.n_gpu_layers, n_layer)
        found = dict.fromkeys((HOST, *self.devices), Bytes())
        for layer in range(n_layer):
            offloaded = self.devices and layer >= n_layer - n_off
            place = self.devices[(layer - (n_layer - n_off)) * len(self.devices) // n_off] if offloaded else HOST
            heavy = GIB * 3 // 4 if self.experts else 0
            home = HOST if layer < native.n_cpu_moe else place
            cells = native.n_ctx * PER_CELL // n_layer
            found[place] += Bytes(GIB - heavy, cells, native.n_ubatch * self.per_token)
            found[home] += Bytes(heavy)
        return found


def room(**free: float) -> tuple[Limits, Limits]:
    """GiB; one of them should stay free."""
    tight = {name: int(gib * GIB) for name, gib in free.items()}
    return {name: n_bytes - GIB for name, n_bytes in tight.items()}, tight


def spec_of(native: LoadParams) -> ModelSpec:
    return ModelSpec("model", Path("model.gguf"), native=native)


def chosen(machine: Machine, shape: ModelShape, native: LoadParams | None = None, **free: float) -> Fit:
    return choose(spec_of(native or LoadParams()), shape, *room(**free), machine)


def test_each_separate_slot_gets_the_whole_context_where_memory_allows() -> None:
    assert chosen(Machine(), replace(DENSE, n_streams=4), SEPARATE, CPU=100).spec.native.n_ctx == 4 * N_CTX_TRAIN
    less = chosen(Machine(), replace(DENSE, n_streams=4), SEPARATE, CPU=32).spec.native.n_ctx
    assert less < 4 * N_CTX_TRAIN
    assert less % (4 * 256) == 0


def test_experts_leave_a_device_before_layers_do() -> None:
    choice = chosen(Machine("CUDA0", experts=True), EXPERTS, CPU=64, CUDA0=6)
    assert choice.spec.native.n_gpu_layers == -1
    assert 4 <= choice.spec.native.n_cpu_moe <= 7
    assert "experts of" in choice.notes[-1]
    tiny = chosen(Machine("CUDA0", experts=True), EXPERTS, CPU=64, CUDA0=3)
    assert (tiny.spec.native.n_cpu_moe, tiny.spec.native.n_gpu_layers > 0) == (N_LAYER, True)


def test_fewer_tokens_are_evaluated_at_once_before_layers_leave_a_device() -> None:
    machine = Machine("CUDA0", per_token=GIB // 9 // 128)  # 4 GiB with 512 tokens, 1 GiB with 128
    shape = replace(DENSE, n_ubatches=(256, 128))
    for free, expected in ((15, 512), (13, 256), (12, 128)):
        choice = chosen(machine, shape, CPU=64, CUDA0=free)
        assert (choice.spec.native.n_ubatch, choice.spec.native.n_gpu_layers) == (expected, ALL_THAT_FIT)
    assert "n_ubatch of 128" in choice.notes[-1]
    for least, free in ((DENSE, 12), (shape, 5)):  # it may not; it does not help
        choice = chosen(machine, least, CPU=64, CUDA0=free)
        assert (choice.spec.native.n_ubatch, choice.spec.native.n_gpu_layers >= 0) == (512, True)


def test_the_processor_must_hold_what_the_devices_do_not() -> None:
    with pytest.raises(ModelFailed, match="of CPU memory"):
        chosen(Machine("CUDA0"), DENSE, CPU=3, CUDA0=6)


@given(
    experts=st.booleans(),
    n_devices=st.integers(0, 3),
    host=st.floats(1, 40),
    each=st.floats(0.5, 20),
    n_streams=st.sampled_from([1, 4]),
)
def test_what_is_chosen_fits_or_nothing_is(
    experts: bool, n_devices: int, host: float, each: float, n_streams: int
) -> None:
    machine = Machine(*(f"CUDA{i}" for i in range(n_devices)), experts=experts)
    shape = replace(EXPERTS if experts else DENSE, n_streams=n_streams)
    native = LoadParams(n_parallel=n_streams, kv_unified=n_streams == 1)
    ample, tight = room(**{HOST: host} | {f"CUDA{i}": each for i in range(n_devices)})
    try:
        choice = choose(spec_of(native), shape, ample, tight, machine)
    except ModelFailed:
        on_host = machine(replace(native, n_ctx=4096 * n_streams, n_gpu_layers=0))
        assert not holds(ample, on_host)
    else:
        assert holds(tight, choice.footprint)
        assert choice.footprint == machine(choice.spec.native)
        assert 4096 * n_streams <= choice.spec.native.n_ctx <= N_CTX_TRAIN * n_streams
    assert machine.n_measured < 40
