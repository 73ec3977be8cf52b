from server.engine.stats import EngineStats
from server.metrics.collector import WINDOW_S, Windows
from tests.unit.clock import Clock


def stats(tokens: int, gaps: tuple[float, ...] = ()) -> EngineStats:
    made = EngineStats(prompt_tokens=tokens, prompt_seconds=tokens / 20)
    for gap in gaps:
        made.inter_token.observe(gap)
    return made


def test_looks_take_nothing_from_each_other() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    for second in range(40):
        clock.now = 1000.0 + second
        for _ in range(3):  # scrapers
            rates = windows.rates("demo", stats(40, (0.25, 0.25)))
            assert rates == ((20.0, 4.0) if second < WINDOW_S else (0.0, 0.0))


def test_a_pause_between_looks_is_one_window() -> None:
    clock = Clock(1000.0)
    windows = Windows(clock)
    windows.rates("demo", stats(40))
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 20.0
    clock.now += 600
    assert windows.rates("demo", stats(80))[0] == 0.0
