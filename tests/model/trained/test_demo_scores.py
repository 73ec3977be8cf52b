"""The model card's scores, guarded on a sample: the first held-out cases of each ability, at temperature 0.

`extras/demo-model/evaluate.py` scores all; a file that was exported wrongly, a changed template or tokenizer, or other
weights than those that were scored show here.
"""

import json
import re
from importlib import import_module
from itertools import islice, pairwise
from pathlib import Path
from types import ModuleType

import llama_cpp
import pytest

ROOT = Path(__file__).resolve().parents[3]
MODELS = ROOT / "models"
PER_ABILITY = 8
FEWER = 2.5 / PER_ABILITY  # an ability may miss two cases of the sample more than its score says
FEWER_IN_ALL = 0.05


@pytest.fixture(scope="module")
def evaluate() -> ModuleType:
    """The script that scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "extras" / "demo-model")
        return import_module("evaluate")


@pytest.fixture(scope="module")
def scores(evaluate: ModuleType) -> dict[str, float]:
    model = llama_cpp.Llama(str(MODELS / "demo.gguf"), n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)
    try:
        found: dict[str, float] = evaluate.score(model, evaluate.frozen(PER_ABILITY), {"temperature": 0.0})
    finally:
        model.close()
    return found


def test_the_sample_has_the_abilities_of_the_card(scores: dict[str, float]) -> None:
    assert set(scores) == set(json.loads((MODELS / "scores.json").read_text())["greedy"])


def test_no_ability_falls_far_behind_its_score(scores: dict[str, float]) -> None:
    published = json.loads((MODELS / "scores.json").read_text())["greedy"]
    assert not {name: score for name, score in scores.items() if score < published[name] - FEWER}


def test_all_together_are_as_good_as_the_card_says(scores: dict[str, float]) -> None:
    published = json.loads((MODELS / "scores.json").read_text())["greedy"]
    assert sum(scores.values()) > sum(published.values()) - FEWER_IN_ALL * len(published)


def test_cases_are_held_out(evaluate: ModuleType) -> None:
    sample = import_module("corpus.sample")
    patterns = ("Hello!", "[Tell me|Name|Say] the capital [of|city of] {0}[.|!]")
    trained = {sample.plain(text) for group in sample._side(patterns, "train") for text in group}
    assert not [text for group in sample._side(patterns, "test") for text in group if sample.plain(text) in trained]
    assert len(evaluate.frozen()) == 14 * 60


def test_questions_to_embed_and_rank_are_held_out_too(evaluate: ModuleType) -> None:
    by_meaning = import_module("corpus.paraphrases").by_meaning
    known, unseen = by_meaning(5, "train", 4000), by_meaning(5, "test", 4000)
    shared = known.keys() & unseen.keys()
    assert len(shared) > 100
    assert not [answer for answer in shared if set(known[answer]) & set(unseen[answer])]


def test_every_way_to_ask_for_a_tool_says_all_of_its_arguments(evaluate: ModuleType) -> None:
    sample, kinds = import_module("corpus.sample"), import_module("corpus.anytools").EVERY_KIND
    said = [(kind, text) for kind in kinds for pattern in kind.asks for text in sample.spelled_out(pattern)]
    assert len(said) > 4000
    assert not [
        text for kind, text in said if set(re.findall(r"{(\d)}", text)) != set(map(str, range(len(kind.parameters))))
    ]
    assert len({name for kind in kinds for name in kind.names}) == sum(len(kind.names) for kind in kinds)


def _lines(name: str) -> list[str]:
    return (MODELS / f"{name}.jsonl").read_text().splitlines()


def test_what_either_set_asks_of_tools_is_not_trained(evaluate: ModuleType) -> None:
    corpus, sample = import_module("corpus"), import_module("corpus.sample")
    cases = [json.loads(line) for name in ("asked", "asked-more") for line in _lines(name)]
    asked = {sample.plain(m["content"]) for case in cases if "calls" in case for m in case["messages"] if m["content"]}
    trained = islice(corpus.any_tools_stream(7, "train"), 2000)
    turns = [pair for talk in trained for pair in pairwise(talk.turns) if pair[1].calls and pair[0].role == "user"]
    assert len(turns) > 3000
    assert not [said.text for said, _ in turns if sample.plain(said.text) in asked]
    offered = {tool["function"]["name"] for case in cases for tool in case.get("tools", ())}
    daily = import_module("corpus.dailykinds").DAILY_KINDS
    assert not offered & {name for kind in daily for name in kind.names}
