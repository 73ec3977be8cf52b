"""The model card's scores, guarded on a sample: the first held-out cases of each ability, at temperature 0.

`extras/demo-model/evaluate.py` scores all; a file that was exported wrongly, a changed template or tokenizer, or other
weights than those that were scored show here.
"""

import json
from importlib import import_module
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


def test_scores_are_those_of_the_model_card(scores: dict[str, float]) -> None:
    published = json.loads((MODELS / "scores.json").read_text())["greedy"]
    assert set(scores) == set(published)
    assert not {name: score for name, score in scores.items() if score < published[name] - FEWER}

    assert sum(scores.values()) > sum(published.values()) - FEWER_IN_ALL * len(published)
