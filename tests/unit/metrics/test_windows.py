from server.engine.stats import EngineStats
from server.metrics.windows import WINDOW_S, Windows
from tests.unit.clock import Clock


def stats(tokens: int, gaps: tuple[float, ...] = ()) -> EngineStats:
    made = EngineStats(prompt_tokens=tokens, prompt_seconds=tokens / 20)
    for gap in gaps:
        made.inter_token.observe(gap)
    return made


def test_the_first_look_tells_of_all_so_far() -> None:
    assert Windows(Clock(1000.0)).rates("demo", stats(40, (0.5,))) == (20.0, 2.0)
    assert Windows(Clock(1000.0)).rates("demo", EngineStats(predicted_tokens=1)) == (
        0.0,
        0.0,
    )  # one is free


def test_looks_take_nothing_from_each_other() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    for second in range(40):
        clock.now = 1000.0 + second
        for _ in range(3):  # scrapers
            rates = windows.rates("demo", stats(40, (0.25, 0.25)))
            assert rates == ((20.0, 4.0) if second < WINDOW_S else (0.0, 0.0))


def test_an_average_reaches_back_no_further_than_it_has_to() -> None:
    clock = Clock(1000.0)
    windows, done = Windows(clock), stats(40)
    for n in range(100):
        clock.now += WINDOW_S / 5
        done.prompt_tokens += 1
        done.prompt_seconds += 1 if n < 50 else 0.5
        rate, _ = windows.rates("demo", done)
    assert rate == 2.0
    assert len(windows._samples["demo"]) < 10


def test_a_pause_between_looks_is_one_window() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    windows.rates("demo", stats(40))
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 20.0
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 0.0


def test_each_model_has_windows_of_its_own() -> None:
    windows = Windows(Clock(1000.0))
    assert windows.rates("a", stats(4))[0] == windows.rates("b", stats(4))[0] == 20.0
