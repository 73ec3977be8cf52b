"""How `benchmarks.trace` condenses the calls of a request to a page."""

from benchmarks.trace import EVENT_LOOP, Visit, phases, tree


def test_event_loop_is_split_where_another_thread_works() -> None:
    reads, waits, replies = (Visit(EVENT_LOOP, [], file) for file in ("read.py", "disconnect.py", "write.py"))
    prepares = [Visit("prepare_0", [], file) for file in ("prompt.py", "output.py", "vocab.py")]

    found = phases([reads, prepares[0], waits, *prepares[1:], replies])

    assert list(found) == [[reads, waits], prepares, [replies]]


def test_each_file_is_one_line_below_its_first_caller() -> None:
    step = [
        Visit("step", [], "loop.py", ["Loop._step"]),
        Visit(
            "step", ["unseen.py", "loop.py"], "scheduler.py", ["Scheduler.place", "Scheduler._order", "Scheduler.plan"]
        ),
        Visit("step", ["loop.py"], "runner.py", ["Runner.decode"]),
    ]

    lines = [" ".join(line.split()) for line in tree([*step, *step])]

    assert lines == ["loop.py Loop._step", "scheduler.py Scheduler.place, .plan", "runner.py Runner.decode"]
