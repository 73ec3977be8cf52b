"""The model card's scores, guarded on a sample: the first held-out cases of each ability, at temperature 0.

`models/demo/evaluate.py` scores all; a file that was exported wrongly, a changed template or tokenizer, or other
weights than those that were scored show here.
"""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType

import llama_cpp
import pytest

DEMO = Path(__file__).resolve().parents[2] / "models" / "demo"
PER_ABILITY = 8
FEWER = 2.5 / PER_ABILITY  # an ability may miss two cases of the sample more than its score says
FEWER_IN_ALL = 0.05


@pytest.fixture(scope="module")
def evaluate() -> ModuleType:
    """The script that scores, with the corpus that it draws from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DEMO)
        return import_module("evaluate")


@pytest.fixture(scope="module")
def scores(evaluate: ModuleType) -> dict[str, float]:
    model = llama_cpp.Llama(str(DEMO.parent / "demo.gguf"), n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)
    try:
        found: dict[str, float] = evaluate.score(model, evaluate.cases(PER_ABILITY), {"temperature": 0.0}, 0)
    finally:
        model.close()
    return found


def test_the_sample_has_the_abilities_of_the_card(scores: dict[str, float]) -> None:
    assert set(scores) == set(json.loads((DEMO / "scores.json").read_text())["greedy"])


def test_no_ability_falls_far_behind_its_score(scores: dict[str, float]) -> None:
    published = json.loads((DEMO / "scores.json").read_text())["greedy"]
    assert not {name: score for name, score in scores.items() if score < published[name] - FEWER}


def test_all_together_are_as_good_as_the_card_says(scores: dict[str, float]) -> None:
    published = json.loads((DEMO / "scores.json").read_text())["greedy"]
    assert sum(scores.values()) > sum(published.values()) - FEWER_IN_ALL * len(published)
