"""``llamapool fit`` and the first screen, over a loader that makes sizes up."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from harness.fakes import FakeLoader
from server.cli.fit_table import fit_table
from server.errors import ModelFailed
from server.first_screen import first_screen
from server.pool.footprint import HOST, Bytes, Fit, Memory
from server.pool.protocols import ModelInfo
from server.pool.spec import LoadParams, ModelSpec
from server.pool.state import ModelFacts, ModelState, Status

GIB = 1 << 30
SPEC = ModelSpec("demo", Path("demo.gguf"))
MEMORY = {HOST: Memory(16 * GIB, 8 * GIB), "CUDA0": Memory(8 * GIB, 6 * GIB)}


class Sized(FakeLoader):
    """1 MiB a token; half of what a model takes is on a device."""

    def memory(self) -> Mapping[str, Memory]:
        return MEMORY

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        n_ctx = spec.native.n_ctx or 2048
        found = {HOST: Bytes(GIB, n_ctx << 20, 0), "CUDA0": Bytes(GIB, n_ctx << 20, GIB // 2)}
        if spec.native.fit and spec.native.n_ctx:
            raise ModelFailed(spec.id, "too large")
        return Fit(replace(spec, native=replace(spec.native, n_ctx=n_ctx)), found, ("context of 2048 tokens",))


def test_a_table_says_what_a_model_takes_and_what_else_would_fit() -> None:
    lines, fits = fit_table(Sized(), SPEC)
    assert fits
    assert lines == [
        "demo: demo.gguf",
        "  2048 tokens of context for 4 slots that share them",
        "  context of 2048 tokens",
        "           weights  context  computing  together     free",
        "      CPU  1.0 GiB  2.0 GiB    0 bytes   3.0 GiB  8.0 GiB",
        "    CUDA0  1.0 GiB  2.0 GiB  512.0 MiB   3.5 GiB  6.0 GiB",
        "  other contexts, with all layers where they are meant to be:",
        "    4096  5.0 GiB of CPU, 5.5 GiB of CUDA0  fits",
    ]


def test_a_table_says_what_does_not_fit() -> None:
    lines, fits = fit_table(Sized(), replace(SPEC, native=LoadParams(n_ctx=9999, n_parallel=2)))
    assert not fits
    assert lines[1] == "  can't be loaded: too large"
    assert lines[-1] == "    8192  9.0 GiB of CPU, 9.5 GiB of CUDA0  does not fit"


def test_nothing_is_made_up_where_sizes_can_not_be_told() -> None:
    lines, fits = fit_table(FakeLoader(), SPEC)
    assert fits
    assert lines[-1] == "  how much memory it takes can't be told on this system"
    assert fit_table(FakeLoader(failing={"demo": "broken"}), SPEC)[1]


def state(model: str, status: Status, facts: ModelFacts | None = None, failure: str = "") -> ModelState:
    spec = ModelSpec(model, Path(f"{model}.gguf"))
    return ModelState(spec, status, 0.0, failure, facts, None, 0.0, None, 0, 0, queued=False, pinned=False)


def facts() -> ModelFacts:
    fit = Fit(ModelSpec("a", Path("a.gguf"), native=LoadParams(n_parallel=4)), {}, ("context of 8192 tokens",))
    template: object = None
    return ModelFacts(ModelInfo(), template, 2048, 4, 0.0, {HOST: Bytes(GIB, GIB // 2, GIB // 4)}, fit)  # type: ignore[arg-type]


def test_the_first_screen_says_what_was_chosen_and_what_to_try() -> None:
    states = [state("late", Status.UNLOADED), state("demo", Status.READY, facts())]
    lines = first_screen(states, MEMORY, {"CUDA0": 5 * GIB}, ["http://127.0.0.1:8080"], has_keys=False)
    assert lines[0].startswith("Llamapool ")
    assert lines[0].endswith(" at http://127.0.0.1:8080")
    assert lines[1:] == [
        "  demo          4 slots of 2048 tokens, 1.8 GiB of CPU",
        "                CPU: weights 1.0 GiB, context 512.0 MiB, computing 256.0 MiB",
        "                context of 8192 tokens",
        "  late          loaded when it is asked for",
        "  memory        CPU: 8.0 GiB of 16.0 GiB are free",
        "                CUDA0: 6.0 GiB of 8.0 GiB are free; models may take 5.0 GiB together",
        "  pages         http://127.0.0.1:8080/docs",
        "  try           curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' "
        """-d '{"model": "late", "messages": [{"role": "user", "content": "Hello!"}]}'""",
    ]


def test_the_first_screen_knows_keys_sockets_failures_and_many_models() -> None:
    failed = state("bad", Status.FAILED, failure="no such file")
    lines = first_screen([failed], {}, {}, ["http+unix:///run/pool.sock"], has_keys=True)
    assert "  bad           can't be loaded: no such file" in lines
    assert "curl --unix-socket /run/pool.sock http://localhost/v1/" in lines[-1]
    assert '-H "Authorization: Bearer $KEY"' in lines[-1]
    many = first_screen([state(f"m{i}", Status.UNLOADED) for i in range(100)], {}, {}, [], has_keys=False)
    assert many[-1].endswith("and 88 more, loaded when they are asked for")
    assert len(many) == 14
