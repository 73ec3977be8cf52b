"""Nothing that was computed in one scope is of use in another: neither cells nor states, waiting, counts or guesses."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.engine.cache.scope import cache_scope, is_lasting, owner_of
from server.engine.request import Finished, Progress, Request, Started
from server.errors import PermissionDenied
from tests.support.fakes import IM_END, FakeRunner, FakeVocab
from tests.unit.engine.builders import GREEDY, alone, engine_over, request, run
from tests.unit.engine.cache.test_disk_cache import Files, still

SCOPES = ["", cache_scope("server", "", "salt"), cache_scope("key", "ada", ""), cache_scope("key", "bert", "")]
TEXT = "what is said more than once. " * 8
WINDOW = 20


class Windowed(FakeRunner):
    """Memory of which only the last tokens can be forgotten, as a sliding window's."""

    def seq_floor(self, seq: int) -> int:
        return max(len(self.cells[seq]) - WINDOW, 0)

    def seq_remove(self, seq: int, pos: int) -> bool:
        if 0 < pos < self.seq_floor(seq):
            return False
        del self.cells[seq][pos:]
        del self.computed_by[seq][pos:]
        return True


def runner(memory: str, n_seq: int, *, unified: bool) -> FakeRunner:
    kind = Windowed if memory == "window" else FakeRunner
    n_cells = 1200 if unified else None
    return kind(n_seq=n_seq, n_ctx_seq=1024, n_cells=n_cells, unified=unified, partial_removal=memory == "any")


def chat(turns: list[int]) -> Request:
    """Turns of some length each, told apart by their letter; what two chats share is a prefix of both."""
    tokens = [FakeVocab.bos]
    for turn in turns:
        tokens += [ord("a") + turn] * (20 * turn + 5) + [IM_END]
    return Request("chat", tokens, GREEDY, max_tokens=4)


chats = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def test_a_scope_tells_owners_and_salts_apart() -> None:
    scopes = [
        *(cache_scope(mode, owner, salt) for mode in ("server", "key") for owner in ("", "ada") for salt in ("", "a")),
        *(cache_scope("request", "ada", "") for _ in range(2)),
    ]
    everybodys = cache_scope("server", "ada", "")
    assert everybodys == ""
    assert cache_scope("server", "ada", "a") == cache_scope("server", "bert", "a") == cache_scope("key", "", "a")
    assert len(set(scopes)) == 6
    assert [owner_of(scope) for scope in scopes[-4:]] == ["ada"] * 4
    assert [is_lasting(scope) for scope in scopes[-4:]] == [True, True, False, False]
    assert not is_lasting(cache_scope("request", "", "a"))
    assert all(is_lasting(cache_scope("key", "ada", salt)) for salt in ("!", "/!", "\ud800"))


async def test_an_equal_prompt_of_another_scope_is_computed_anew_and_shows_nothing() -> None:
    async with engine_over(FakeRunner(n_seq=4, n_ctx_seq=512)) as engine:
        asked = [replace(request(TEXT, return_progress=True), cache_scope=scope) for scope in SCOPES * 2]
        replies = [(await run(engine, one))[0] for one in asked]
    n = len(asked[0].prompt)
    for reply, cached in zip(replies, [0] * 4 + [n - 1] * 4, strict=True):
        counts = {event.n_cached for event in reply.events if isinstance(event, Started | Finished)}
        counts |= {event.cached for event in reply.events if isinstance(event, Progress)}
        assert counts == {cached}
        assert reply.finished[0].timings.cache_n == cached
        assert reply.text == replies[0].text


async def test_what_nobody_can_use_again_is_not_kept() -> None:
    files = Files()
    async with engine_over(FakeRunner(n_seq=1, n_ctx_seq=512), clock=still, cache_ram=64, cache_disk=64) as engine:
        await engine.use_disk(files)
        for _ in range(3):
            await run(engine, replace(request(TEXT), cache_scope=cache_scope("request", "ada", "")))
        assert engine.stats.cache_ram_states == 0
        await run(engine, replace(request(TEXT), cache_scope="ada/"))
        await run(engine, replace(request("another"), cache_scope="ada/"))
        assert engine.stats.cache_ram_states == 1
    assert {state.adapter_set.scope for state in files.saved.values()} == {"ada/"}


async def test_a_slot_is_saved_and_erased_by_its_owner_alone() -> None:
    async with engine_over(FakeRunner(n_seq=2, n_ctx_seq=512)) as engine:
        (reply,) = await run(engine, replace(request(TEXT), cache_scope="ada/"))
        slot = reply.finished[0].id_slot
        for owner in ("", "bert"):
            with pytest.raises(PermissionDenied, match="another API key"):
                await engine.save_slot(slot, owner)
            with pytest.raises(PermissionDenied, match="another API key"):
                await engine.erase_slot(slot, owner)
        saved = await engine.save_slot(slot, "ada")
        assert saved.adapter_set.scope == "ada/"
        assert await engine.erase_slot(slot, "ada") == len(saved.tokens)
        assert await engine.erase_slot(slot, "bert") == 0  # nothing is nobody's
        await engine.restore_slot(slot, saved)
        for scope, cached in (("bert/", 0), ("ada/", len(request(TEXT).prompt) - 1)):
            (reply,) = await run(engine, replace(request(TEXT), cache_scope=scope))
            assert reply.finished[0].n_cached == cached


Scoped = tuple[str, list[int], int]
scoped = st.tuples(st.sampled_from(SCOPES), chats, st.sampled_from([0, 0, 8]))
rounds = st.lists(st.lists(scoped, min_size=1, max_size=4), min_size=1, max_size=5)


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
def test_no_request_of_one_scope_ever_takes_a_cell_of_another(
    memory: str,
    n_seq: int,
    unified: bool,
    n_instances: int,
    lives: list[list[list[Scoped]]],
    ram: int,
    disk: int,
    n_checkpoints: int,
    spacing: int,
) -> None:
    """Over every kind of memory, instances that share RAM and disk, restarts, and requests that arrive together."""
    params = {"cache_ram": ram, "cache_disk": disk, "ctx_checkpoints": n_checkpoints, "checkpoint_min_step": spacing}

    def prompt(scope: str, turns: list[int], n_cache_reuse: int) -> Request:
        return replace(chat(turns), cache_scope=scope, n_cache_reuse=n_cache_reuse)

    async def live(files: Files) -> None:
        seen: dict[str, list[list[int]]] = {}
        for rounds_ in lives:
            runners = [runner(memory, n_seq, unified=unified) for _ in range(n_instances)]
            async with engine_over(*runners, clock=still, min_chunk=8, **params) as engine:
                if disk:
                    await engine.use_disk(files)
                for together in rounds_:
                    asked = [prompt(*one) for one in together]
                    for one in asked:
                        seen.setdefault(one.cache_scope, []).append(one.prompt)
                    for one, reply in zip(asked, await run(engine, *asked), strict=True):
                        n_cached = reply.finished[0].n_cached
                        others = [p for p in seen[one.cache_scope] if p is not one.prompt]
                        if not others:  # nobody of its scope was here before, nor beside it
                            assert n_cached == 0
                        if not one.n_cache_reuse:
                            assert n_cached <= max((_common(one.prompt, p) for p in others), default=0)
                            assert reply.text == alone(one)

    asyncio.run(live(Files()))


def _common(a: list[int], b: list[int]) -> int:
    """Of a prompt and one before it, with what may have followed: its reply, cut at the next turn."""
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return n if n < len(b) else n + 4
