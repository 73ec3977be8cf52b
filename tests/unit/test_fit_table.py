"""``llamapool fit`` and the startup banner, with a fake loader that invents sizes."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from server.cli.fit_table import fit_table
from server.errors import ModelFailed
from server.pool.memory import HOST, Budget, Bytes, Fit, Memory, read_budget
from server.pool.protocols import ModelInfo
from server.pool.spec import LoadParams, ModelSpec
from server.pool.state import ModelFacts, ModelState, Status
from server.startup_banner import banner_lines, show_banner
from tests.support.fakes import FakeLoader

GIB = 1 << 30
SPEC = ModelSpec("demo", Path("demo.gguf"))
MEMORY = {HOST: Memory(16 * GIB, 8 * GIB), "CUDA0": Memory(8 * GIB, 6 * GIB)}


class SizedLoader(FakeLoader):
    """A loader whose models take 1 GiB for weights and 1 MiB per token of context, both on the CPU and on CUDA0."""

    def memory(self) -> Mapping[str, Memory]:
        return MEMORY

    def fit(self, spec: ModelSpec, granted: Mapping[str, int] | None = None) -> Fit:
        n_ctx = spec.native.n_ctx or min(2048, ((granted or {})[HOST] - GIB) >> 20)
        found = {HOST: Bytes(GIB, n_ctx << 20, 0), "CUDA0": Bytes(GIB, n_ctx << 20, GIB // 2)}
        if spec.native.fit and (spec.native.n_ctx or n_ctx < 512):
            raise ModelFailed(spec.id, "too large")
        return Fit(replace(spec, native=replace(spec.native, n_ctx=n_ctx)), found, ("context of 2048 tokens",))


def test_fit_table_shows_memory_use_and_other_contexts() -> None:
    lines, fits = fit_table(SizedLoader(), SPEC, Budget())
    assert fits
    assert lines == [
        "demo: demo.gguf",
        "  2048 tokens of context for 4 slots that share them",
        "  context of 2048 tokens",
        "           weights  context  computing  together     free  models may take",
        "      CPU  1.0 GiB  2.0 GiB    0 bytes   3.0 GiB  8.0 GiB          7.0 GiB",
        "    CUDA0  1.0 GiB  2.0 GiB  512.0 MiB   3.5 GiB  6.0 GiB          5.0 GiB",
        "  other contexts, with all layers on the devices chosen:",
        "    4096  5.0 GiB of CPU, 5.5 GiB of CUDA0  does not fit",
    ]


def test_fit_table_respects_the_memory_budget() -> None:
    lines, fits = fit_table(SizedLoader(), SPEC, read_budget("CPU=2GiB,CUDA0=100%"))
    assert fits
    assert lines[1].startswith("  1024 tokens")
    assert lines[4:6] == [
        "      CPU  1.0 GiB  1.0 GiB    0 bytes   2.0 GiB  8.0 GiB          2.0 GiB",
        "    CUDA0  1.0 GiB  1.0 GiB  512.0 MiB   2.5 GiB  6.0 GiB          8.0 GiB",
    ]
    assert lines[-1] == "    4096  5.0 GiB of CPU, 5.5 GiB of CUDA0  does not fit"
    assert not fit_table(SizedLoader(), SPEC, read_budget("1100MiB"))[1]


def test_fit_table_reports_a_model_that_does_not_fit() -> None:
    lines, fits = fit_table(SizedLoader(), replace(SPEC, native=LoadParams(n_ctx=9999, n_parallel=2)), Budget())
    assert not fits
    assert lines[1] == "  can't be loaded: too large"
    assert lines[-1] == "    8192  9.0 GiB of CPU, 9.5 GiB of CUDA0  does not fit"


def test_fit_table_reports_that_memory_cannot_be_measured() -> None:
    lines, fits = fit_table(FakeLoader(), SPEC, Budget())
    assert fits
    assert lines[-1] == "  its memory cannot be measured on this system"
    assert fit_table(FakeLoader(failing={"demo": "broken"}), SPEC, Budget())[1]


def state(model: str, status: Status, facts: ModelFacts | None = None, failure: str = "", **native: Any) -> ModelState:
    spec = ModelSpec(model, Path(f"{model}.gguf"), native=LoadParams(**native))
    loaded: Any = SimpleNamespace(serves=True) if facts else None
    return ModelState(spec, status, 0.0, failure, facts, loaded, None, 0, 0, queued=False, pinned=False)


def facts(**info: Any) -> ModelFacts:
    fit = Fit(ModelSpec("a", Path("a.gguf"), native=LoadParams(n_parallel=4)), {}, ("context of 8192 tokens",))
    template: Any = None
    footprint = {HOST: Bytes(GIB, GIB // 2, GIB // 4)}
    return ModelFacts(ModelInfo(**info), template, 2048, 4, 0.0, footprint, fit)


def banner(
    *states: ModelState, at: str = "http://a", prefix: str = "", keys: bool = False, page: bool = True
) -> list[str]:
    memory, budget = (MEMORY, {"CUDA0": 5 * GIB}) if len(states) > 1 else ({}, {})
    return banner_lines(states, memory, budget, [at] if at else [], prefix, has_keys=keys, has_page=page)


def test_banner_shows_models_memory_urls_and_an_example_request() -> None:
    lines = banner(state("late", Status.UNLOADED), state("demo", Status.READY, facts()), at="http://127.0.0.1:8080")
    assert lines[0].startswith("Llamapool ")
    assert lines[0].endswith(" at http://127.0.0.1:8080")
    assert lines[1:] == [
        "  demo          4 slots of 2048 tokens, 1.8 GiB of CPU",
        "                CPU: weights 1.0 GiB, context 512.0 MiB, computing 256.0 MiB",
        "                context of 8192 tokens",
        "  late          loaded at its first request",
        "  memory        CPU: 8.0 GiB of 16.0 GiB are free",
        "                CUDA0: 6.0 GiB of 8.0 GiB are free; models may take 5.0 GiB together",
        "  pages         http://127.0.0.1:8080/, http://127.0.0.1:8080/docs (the API)",
        "  try           curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' "
        """-d '{"model": "demo", "messages": [{"role": "user", "content": "Hello!"}]}'""",
    ]


async def test_banner_is_not_shown_while_the_server_stops() -> None:
    """The fake pool has no `memory`, so that reading it for the banner fails."""
    pool: Any = SimpleNamespace(starting=False, subscribe=nullcontext)
    draining = asyncio.Event()
    with pytest.raises(AttributeError, match="memory"):
        await show_banner(pool, ["http://a"], "", draining, has_keys=False, has_page=True)
    draining.set()
    await show_banner(pool, ["http://a"], "", draining, has_keys=False, has_page=True)


def test_banner_handles_api_keys_unix_sockets_and_many_models() -> None:
    lines = banner(state("late", Status.UNLOADED), at="http+unix:///run/pool.sock", keys=True, page=False)
    assert "  pages         /docs (the API)" in lines
    assert "curl --unix-socket /run/pool.sock http://localhost/v1/" in lines[-1]
    assert '-H "Authorization: Bearer $KEY"' in lines[-1]
    for prefix in ("/llm", "/x.sock"):
        late = state("late", Status.UNLOADED)
        lines = banner(late, at=f"https+unix:///run/a.sock/b.sock{prefix}", prefix=prefix, page=False)
        assert f"  pages         {prefix}/docs (the API)" in lines
        assert f"curl --unix-socket /run/a.sock/b.sock https://localhost{prefix}/v1/" in lines[-1]
    many = banner_lines(
        [state(f"m{i}", Status.UNLOADED) for i in range(100)], {}, {}, [], "", has_keys=False, has_page=True
    )
    assert many[-1].endswith("and 88 more, loaded at their first request")
    assert len(many) == 14


def test_example_request_in_the_banner_suits_a_model_that_can_load() -> None:
    bad = state("bad", Status.FAILED, failure="no such file")
    embedder = state("vectors", Status.READY, facts(generates=False, embeds=True))
    ranker = state("ranks", Status.UNLOADED, pooling="rank")
    assert "  bad           can't be loaded: no such file" in banner(bad)
    assert not any(line.startswith("  try") for line in banner(bad))
    assert """/v1/chat/completions""" in banner(bad, state("late", Status.UNLOADED))[-1]
    assert """{"model": "late", """ in banner(bad, state("late", Status.UNLOADED))[-1]
    assert banner(bad, ranker, embedder)[-1].endswith("""/json' -d '{"model": "vectors", "input": "Hello!"}'""")
    assert "http://a/v1/embeddings " in banner(embedder)[-1]
    assert banner(ranker)[-1].endswith("""-d '{"query": "Hello!", "documents": ["Hi", "Bye"]}'""")
