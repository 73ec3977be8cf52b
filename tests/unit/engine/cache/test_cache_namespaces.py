"""Cache namespaces: requests neither reuse nor see what was cached in another namespace. Uses fake runners."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.cache.prefix_cache import common_prefix
from server.engine.cache.scope import cache_scope, is_lasting, owner_of
from server.engine.request import Finished, Progress, Request, Started
from server.errors import PermissionDenied
from tests.support.fakes import IM_END, FakeRunner, FakeVocab
from tests.unit.clock import Clock
from tests.unit.engine.builders import GREEDY, engine_over, expected_text, request, run
from tests.unit.engine.cache.fake_files import FakeFiles

NAMESPACES = ["", cache_scope("server", "", "salt"), cache_scope("key", "ada", ""), cache_scope("key", "bert", "")]
TEXT = "a prompt that several clients send. " * 8
WINDOW = 20


class SlidingWindowRunner(FakeRunner):
    """A runner that can remove only the last `WINDOW` tokens of a sequence, as models with a sliding window."""

    def seq_floor(self, seq: int) -> int:
        return max(len(self.cells[seq]) - WINDOW, 0)

    def seq_remove(self, seq: int, pos: int) -> bool:
        if 0 < pos < self.seq_floor(seq):
            return False
        del self.cells[seq][pos:]
        del self.computed_by[seq][pos:]
        return True


def make_runner(removable: str, n_seq: int, *, unified: bool) -> FakeRunner:
    kind = SlidingWindowRunner if removable == "window" else FakeRunner
    n_cells = 1200 if unified else None
    return kind(n_seq=n_seq, n_ctx_seq=1024, n_cells=n_cells, unified=unified, partial_removal=removable == "any")


def chat(turns: list[int]) -> Request:
    """Return a request whose turns each have their own letter and length, so that two chats share only a prefix."""
    tokens = [FakeVocab.bos]
    for turn in turns:
        tokens += [ord("a") + turn] * (20 * turn + 5) + [IM_END]
    return Request("chat", tokens, GREEDY, max_tokens=4)


chats = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def test_namespaces_of_other_owners_and_salts_differ() -> None:
    scopes = [
        *(cache_scope(mode, owner, salt) for mode in ("server", "key") for owner in ("", "ada") for salt in ("", "a")),
        *(cache_scope("request", "ada", "") for _ in range(2)),
    ]
    assert cache_scope("server", "ada", "") == ""
    assert cache_scope("server", "ada", "a") == cache_scope("server", "bert", "a") == cache_scope("key", "", "a")
    assert len(set(scopes)) == 6
    assert [owner_of(scope) for scope in scopes[-4:]] == ["ada"] * 4
    assert [is_lasting(scope) for scope in scopes[-4:]] == [True, True, False, False]
    assert not is_lasting(cache_scope("request", "", "a"))
    assert all(is_lasting(cache_scope("key", "ada", salt)) for salt in ("!", "/!", "\ud800"))


async def test_prompt_cached_in_another_namespace_is_recomputed_and_counts_as_uncached() -> None:
    async with engine_over(FakeRunner(n_seq=4, n_ctx_seq=512)) as engine:
        requests = [request(TEXT, return_progress=True, cache_scope=scope) for scope in NAMESPACES * 2]
        replies = [(await run(engine, one))[0] for one in requests]
    n = len(requests[0].prompt)
    for reply, cached in zip(replies, [0] * 4 + [n - 1] * 4, strict=True):
        counts = {event.n_cached for event in reply.events if isinstance(event, Started | Finished)}
        counts |= {event.cached for event in reply.events if isinstance(event, Progress)}
        assert counts == {cached}
        assert reply.finished[0].timings.cache_n == cached
        assert reply.text == replies[0].text


async def test_states_of_single_request_namespaces_are_not_offloaded() -> None:
    files = FakeFiles()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512), clock=Clock(), cache_ram=64, cache_disk=64) as engine:
        await engine.use_disk(files)
        for _ in range(3):
            await run(engine, request(TEXT, cache_scope=cache_scope("request", "ada", "")))
        assert engine.stats.cache_ram_states == 0
        await run(engine, request(TEXT, cache_scope="ada/"))
        await run(engine, request("another", cache_scope="ada/"))
        assert engine.stats.cache_ram_states == 1
    assert {state.adapter_set.scope for state in files.saved.values()} == {"ada/"}


async def test_only_the_owner_of_a_slot_can_save_or_erase_it() -> None:
    async with engine_over(FakeRunner(n_seq=2, n_ctx_seq=512)) as engine:
        (reply,) = await run(engine, request(TEXT, cache_scope="ada/"))
        slot = reply.finished[0].id_slot
        for owner in ("", "bert"):
            with pytest.raises(PermissionDenied, match="another API key"):
                await engine.save_slot(slot, owner)
            with pytest.raises(PermissionDenied, match="another API key"):
                await engine.erase_slot(slot, owner)
        saved = await engine.save_slot(slot, "ada")
        assert saved.adapter_set.scope == "ada/"
        assert await engine.erase_slot(slot, "ada") == len(saved.tokens)
        assert await engine.erase_slot(slot, "bert") == 0  # an empty slot has no owner
        await engine.restore_slot(slot, saved)
        for scope, cached in (("bert/", 0), ("ada/", len(request(TEXT).prompt) - 1)):
            (reply,) = await run(engine, request(TEXT, cache_scope=scope))
            assert reply.finished[0].n_cached == cached


RequestDraw = tuple[str, list[int], int]
"""Namespace, turns of a `chat`, and ``n_cache_reuse``."""
requests = st.tuples(st.sampled_from(NAMESPACES), chats, st.sampled_from([0, 0, 8]))
rounds = st.lists(st.lists(requests, min_size=1, max_size=4), min_size=1, max_size=5)


@given(
    st.sampled_from(["any", "window", "none"]),
    st.integers(1, 3),
    st.booleans(),
    st.integers(1, 2),
    st.lists(rounds, min_size=1, max_size=2),
    st.sampled_from([0, 2]),
    st.sampled_from([0, 50]),
    st.sampled_from([0, 2, 32]),
    st.sampled_from([0, 50, 8192]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_requests_never_reuse_cells_of_another_cache_namespace(
    removable: str,
    n_seq: int,
    unified: bool,
    n_instances: int,
    restarts: list[list[list[RequestDraw]]],
    ram: int,
    disk: int,
    n_checkpoints: int,
    spacing: int,
) -> None:
    """`restarts`: for each start of the engine, rounds of requests that arrive together. `removable`: which tokens of a
    sequence the model can remove.
    """
    params = {"cache_ram": ram, "cache_disk": disk, "ctx_checkpoints": n_checkpoints, "checkpoint_min_step": spacing}

    async def run_all(files: FakeFiles) -> None:
        sent: dict[str, list[list[int]]] = {}  # prompts by namespace
        for its_rounds in restarts:
            runners = [make_runner(removable, n_seq, unified=unified) for _ in range(n_instances)]
            async with engine_over(*runners, clock=Clock(), min_chunk=8, **params) as engine:
                if disk:
                    await engine.use_disk(files)
                for draws in its_rounds:
                    simultaneous = [replace(chat(t), cache_scope=scope, n_cache_reuse=n) for scope, t, n in draws]
                    for one in simultaneous:
                        sent.setdefault(one.cache_scope, []).append(one.prompt)
                    for one, reply in zip(simultaneous, await run(engine, *simultaneous), strict=True):
                        n_cached = reply.finished[0].n_cached
                        others = [p for p in sent[one.cache_scope] if p is not one.prompt]
                        if not others:
                            assert n_cached == 0
                        if not one.n_cache_reuse:
                            assert n_cached <= max((_n_reusable(one.prompt, p) for p in others), default=0)
                            assert reply.text == expected_text(one)

    asyncio.run(run_all(FakeFiles()))


def _n_reusable(prompt: list[int], other: list[int]) -> int:
    """Return how many tokens of `prompt` may be cached after a request for `other` and its 4 reply tokens."""
    n = common_prefix(prompt, other)
    return n if n < len(other) else n + 4
