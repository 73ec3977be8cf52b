"""How a trace's calls are folded to a page."""

from benchmarks.trace import EVENT_LOOP, Stay, acts, tree


def test_the_event_loop_is_cut_where_another_thread_works() -> None:
    reads, waits, replies = (Stay(EVENT_LOOP, [], file) for file in ("read.py", "disconnect.py", "write.py"))
    prepares = [Stay("prepare_0", [], file) for file in ("prompt.py", "output.py", "vocab.py")]

    found = acts([reads, prepares[0], waits, *prepares[1:], replies])

    assert list(found) == [[reads, waits], prepares, [replies]]


def test_a_file_is_one_line_below_its_first_caller() -> None:
    step = [
        Stay("step", [], "loop.py", ["Loop._step"]),
        Stay(
            "step", ["unseen.py", "loop.py"], "scheduler.py", ["Scheduler.place", "Scheduler._order", "Scheduler.plan"]
        ),
        Stay("step", ["loop.py"], "runner.py", ["Runner.decode"]),
    ]

    lines = [" ".join(line.split()) for line in tree([*step, *step])]

    assert lines == ["loop.py Loop._step", "scheduler.py Scheduler.place, .plan", "runner.py Runner.decode"]
