"""Check the invariants of a pool. The checks read private attributes, because no interface shows leaks."""

from collections.abc import Mapping, Sequence

from server.pool.entry import Entry
from server.pool.pool import Pool
from server.pool.state import OCCUPYING, Status


def check_pool(pool: Pool) -> None:
    """Assert that leases, waiters, the queue and the states of models agree. Call it between events."""
    entries, queue = list(pool._entries.values()), pool._scheduler.queue
    _check_entries(entries, queue, pool.limits.models_max)
    taken = pool._scheduler.memory.taken()
    for device, limit in pool.budget.items():
        assert taken.get(device, 0) <= limit, f"{taken[device]} bytes of {device} are reserved, of {limit}"


def _check_entries(entries: Sequence[Entry], queue: Mapping[str, float], models_max: int) -> None:
    for entry in entries:
        _check_status(entry)
        _check_waiters(entry, queued=entry.id in queue)
    leases = [lease for entry in entries for lease in entry.leases]
    assert len(leases) == len({id(lease) for lease in leases}), "a lease is counted twice"
    held = [entry.id for entry in entries if entry.status in OCCUPYING]
    assert models_max <= 0 or len(held) <= models_max, f"{held} are more than models_max {models_max}"
    assert set(queue) <= {entry.id for entry in entries}, "an unknown model is queued"


def _check_status(entry: Entry) -> None:
    status, has_task = entry.status, entry.task is not None and not entry.task.done()
    if entry.loaded is not None:
        assert entry.loaded.vacant.is_set() == (not entry.leases), f"{entry.id}: vacant does not match its leases"
    for lease in entry.leases:
        assert not lease.released, f"{entry.id}: a released lease is still counted"
        assert lease.model is entry.loaded, f"{entry.id}: a lease on a model that was freed"
    has_model = status in (Status.READY, Status.DRAINING)
    facts = (entry.load is not None, entry.download is not None, entry.loaded is not None, bool(entry.failure))
    has_failed = status is Status.FAILED or entry.restarting
    expected = (status is Status.LOADING, status is Status.DOWNLOADING, has_model, has_failed)
    assert facts == expected, f"{entry.id}: (load, download, loaded, failure) are {facts} while {status}"
    assert (entry.facts is not None) or status not in (Status.READY, Status.SLEEPING), f"{entry.id}: no facts"
    assert status is Status.READY or not entry.giving_way, f"{entry.id}: is being replaced while {status}"
    assert has_task or status is not Status.LOADING, f"{entry.id}: loading without a task"


def _check_waiters(entry: Entry, *, queued: bool) -> None:
    loading = entry.download is not None or (entry.load is not None and not entry.load.cancelled)
    waits = queued or loading or entry.n_replacing > 0
    assert not queued or entry.wanted, f"{entry.id}: queued without waiters"
    assert not entry.wanted or waits, f"{entry.id}: has waiters, but neither loads nor is queued"
    assert not (queued and entry.serving), f"{entry.id}: queued while it serves requests"
