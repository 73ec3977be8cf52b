"""Automatic fit (`choose`) of a model of 8 layers on fake machines with 0 to 3 devices."""

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
CELL_BYTES = GIB // 8192  # 16 GiB for the full context
SEPARATE = LoadParams(n_parallel=4, kv_unified=False)


class FakeMeasure:
    """Footprints of 8 layers and an output of 1 GiB each on `devices`; with `experts`, three quarters are experts."""

    def __init__(self, *devices: str, experts: bool = False, token_bytes: int = GIB // 64 // 512) -> None:
        self.devices = devices
        self.token_bytes = token_bytes  # compute buffer of a layer for each token of a ubatch
        self.experts = experts
        self.n_measured = 0

    def __call__(self, native: LoadParams) -> Footprint:
        self.n_measured += 1
        n_layer = N_LAYER + 1
        n_offloaded = n_layer if native.n_gpu_layers < 0 else min(native.n_gpu_layers, n_layer)
        footprint = dict.fromkeys((HOST, *self.devices), Bytes())
        for layer in range(n_layer):
            nth = layer - (n_layer - n_offloaded)
            device = self.devices[nth * len(self.devices) // n_offloaded] if self.devices and nth >= 0 else HOST
            expert_bytes = GIB * 3 // 4 if self.experts else 0
            kv_bytes = native.n_ctx * CELL_BYTES // n_layer
            footprint[device] += Bytes(GIB - expert_bytes, kv_bytes, native.n_ubatch * self.token_bytes)
            footprint[HOST if layer < native.n_cpu_moe else device] += Bytes(expert_bytes)
        return footprint


def limits(**free: float) -> tuple[Limits, Limits]:
    """Return the limits of `choose` for free GiB by device: one GiB less if possible, and all."""
    tight = {name: int(gib * GIB) for name, gib in free.items()}
    return {name: n_bytes - GIB for name, n_bytes in tight.items()}, tight


def spec_of(native: LoadParams) -> ModelSpec:
    return ModelSpec("model", Path("model.gguf"), native=native)


def choose_for(measure: FakeMeasure, shape: ModelShape, native: LoadParams | None = None, **free: float) -> Fit:
    return choose(spec_of(native or LoadParams()), shape, *limits(**free), measure)


def test_slots_with_separate_kv_get_the_full_context_if_memory_allows() -> None:
    full = choose_for(FakeMeasure(), replace(DENSE, n_streams=4), SEPARATE, CPU=100).spec.native.n_ctx
    assert full == 4 * N_CTX_TRAIN
    less = choose_for(FakeMeasure(), replace(DENSE, n_streams=4), SEPARATE, CPU=32).spec.native.n_ctx
    assert less < 4 * N_CTX_TRAIN
    assert less % (4 * 256) == 0


def test_experts_move_to_the_cpu_before_whole_layers() -> None:
    fit = choose_for(FakeMeasure("CUDA0", experts=True), EXPERTS, CPU=64, CUDA0=6)
    assert fit.spec.native.n_gpu_layers == -1
    assert 4 <= fit.spec.native.n_cpu_moe <= 7
    assert "experts of" in fit.notes[-1]
    small = choose_for(FakeMeasure("CUDA0", experts=True), EXPERTS, CPU=64, CUDA0=3)
    assert (small.spec.native.n_cpu_moe, small.spec.native.n_gpu_layers > 0) == (N_LAYER, True)


def test_the_ubatch_shrinks_before_layers_move_to_the_cpu() -> None:
    measure = FakeMeasure("CUDA0", token_bytes=GIB // 9 // 128)  # 4 GiB with 512 tokens, 1 GiB with 128
    shape = replace(DENSE, n_ubatches=(256, 128))
    for free, expected in ((15, 512), (13, 256), (12, 128)):
        fit = choose_for(measure, shape, CPU=64, CUDA0=free)
        assert (fit.spec.native.n_ubatch, fit.spec.native.n_gpu_layers) == (expected, ALL_THAT_FIT)
    assert "n_ubatch of 128" in fit.notes[-1]
    for unchanged, free in ((DENSE, 12), (shape, 5)):  # n_ubatch is fixed; the smallest one does not fit either
        fit = choose_for(measure, unchanged, CPU=64, CUDA0=free)
        assert (fit.spec.native.n_ubatch, fit.spec.native.n_gpu_layers >= 0) == (512, True)


def test_rejects_a_model_whose_remaining_layers_exceed_cpu_memory() -> None:
    with pytest.raises(ModelFailed, match="of CPU memory"):
        choose_for(FakeMeasure("CUDA0"), DENSE, CPU=3, CUDA0=6)


@given(
    experts=st.booleans(),
    n_devices=st.integers(0, 3),
    host=st.floats(1, 40),
    each=st.floats(0.5, 20),
    n_streams=st.sampled_from([1, 4]),
)
def test_every_chosen_fit_is_within_the_limits(
    experts: bool, n_devices: int, host: float, each: float, n_streams: int
) -> None:
    measure = FakeMeasure(*(f"CUDA{i}" for i in range(n_devices)), experts=experts)
    shape = replace(EXPERTS if experts else DENSE, n_streams=n_streams)
    native = LoadParams(n_parallel=n_streams, kv_unified=n_streams == 1)
    ample, tight = limits(**{HOST: host} | {f"CUDA{i}": each for i in range(n_devices)})
    try:
        fit = choose(spec_of(native), shape, ample, tight, measure)
    except ModelFailed:
        on_host = measure(replace(native, n_ctx=4096 * n_streams, n_gpu_layers=0))
        assert not holds(ample, on_host)
    else:
        assert holds(tight, fit.footprint)
        assert fit.footprint == measure(fit.spec.native)
        assert 4096 * n_streams <= fit.spec.native.n_ctx <= N_CTX_TRAIN * n_streams
    assert measure.n_measured < 40
