"""`llamapool bench` measures both servers in the same way, and gets every figure from both."""

import asyncio

from server.bench.figures import Figures
from server.bench.probe import find_model, prepare
from server.bench.scenarios import Setting, named, run
from server.bench.session import ModelClient
from server.bench.target import Target
from tests.model.oracle.comparison import Pair
from tests.support.real_server import RealServer

SCENARIOS = "one,slots,prefix,conversations,rate"


def measured(server: RealServer) -> dict[str, Figures]:
    target = Target(server.host, server.port)
    given = ModelClient(target, asyncio.run(find_model(target, 100)), limit_s=200)
    session, fit, changes = prepare(given)
    assert (session, changes) == (given, [])
    setting = Setting(n_parallel=4, scale=0.1, fit=fit)
    return {scenario.name: run(scenario, session, setting) for scenario in named(SCENARIOS)}


def test_both_servers_give_every_figure_for_the_same_prompts(pair: Pair) -> None:
    ours, theirs = measured(pair.ours), measured(pair.theirs)
    assert {name: set(figures) for name, figures in ours.items()} == {name: set(f) for name, f in theirs.items()}
    assert ours["prefix"]["prompt tokens"] == theirs["prefix"]["prompt tokens"]
    assert ours["prefix"]["prompt tokens computed"] < theirs["prefix"]["prompt tokens computed"]
    assert min(theirs["one"]["tok/s"], theirs["slots"]["tok/s"], theirs["rate"]["requests/s"]) > 0
