"""A proof that the pool's records agree with each other; for tests and debugging."""

from collections.abc import Mapping, Sequence

from server.pool.entry import Entry
from server.pool.state import OCCUPYING, Status


def check_integrity(entries: Sequence[Entry], queue: Mapping[str, float], models_max: int) -> None:
    """Raise AssertionError naming the model whose records contradict each other. To be called between events."""
    for entry in entries:
        _check_leases(entry)
        _check_status(entry)
        _check_waiters(entry, queued=entry.id in queue)
    leases = [lease for entry in entries for lease in entry.leases]
    assert len(leases) == len({id(lease) for lease in leases}), "a lease is counted twice"
    held = [entry.id for entry in entries if entry.status in OCCUPYING]
    assert models_max <= 0 or len(held) <= models_max, f"{held} are more than models_max {models_max}"
    assert set(queue) <= {entry.id for entry in entries}, "an unknown model is queued"


def _check_leases(entry: Entry) -> None:
    assert entry.vacant.is_set() == (not entry.leases), f"{entry.id}: vacant does not match its leases"
    for lease in entry.leases:
        assert not lease.released, f"{entry.id}: a released lease is still counted"
        assert lease.model is entry.loaded, f"{entry.id}: a lease on a model that was freed"


def _check_status(entry: Entry) -> None:
    status = entry.status
    assert (entry.load is not None) == (status is Status.LOADING), f"{entry.id}: a load while {status}"
    assert (entry.download is not None) == (status is Status.DOWNLOADING), f"{entry.id}: a download while {status}"
    has_model = status in (Status.READY, Status.DRAINING)
    assert (entry.loaded is not None) == has_model, f"{entry.id}: loaded while {status}"
    assert (entry.facts is not None) or status not in (Status.READY, Status.SLEEPING), (
        f"{entry.id}: no facts while {status}"
    )
    assert bool(entry.failure) == (status is Status.FAILED), f"{entry.id}: failure while {status}"
    assert status is Status.READY or not entry.giving_way, f"{entry.id}: gives way while {status}"
    under_way = entry.task is not None and not entry.task.done()
    assert under_way or status is not Status.LOADING, f"{entry.id}: nobody loads it"


def _check_waiters(entry: Entry, *, queued: bool) -> None:
    loading = entry.download is not None or (entry.load is not None and not entry.load.cancelled)
    assert not queued or entry.wanted, f"{entry.id}: queued, and nobody wants it"
    assert not entry.wanted or queued or loading, f"{entry.id}: wanted, and nothing is done about it"
    assert not (queued and entry.serving), f"{entry.id}: queued while it serves"
