"""The model that the name in a request selects."""

from dataclasses import replace
from pathlib import Path

import pytest

from server.errors import ModelNotFound
from server.pool.names import Names
from server.pool.spec import ModelSpec, Task
from tests.unit.pool.fakes import spec

E, F, R = spec("e", pooling="mean"), spec("f", embedding=True), spec("r", pooling="rank")


@pytest.mark.parametrize(
    ("models", "tasks"),
    [
        ([spec("a")], {"generate": "a"}),  # the only model
        ([E, spec("a"), R, spec("b"), F], {"generate": "a", "embed": "e", "rerank": "r"}),  # the first of the task
        ([spec("a"), spec("b")], {"rerank": "a"}),  # the first of all, as none can do the task
    ],
)
@pytest.mark.parametrize("name", [None, ""])
def test_request_without_a_name_gets_the_first_model_of_its_task(
    models: list[ModelSpec], tasks: dict[Task, str], name: str | None
) -> None:
    assert {task: Names(models).resolve(name, task).id for task in tasks} == tasks


def test_only_model_of_a_task_answers_to_any_name() -> None:
    names = Names([spec("a"), E, F, R])
    assert Names([spec("a")]).resolve("gpt-4o").id == names.resolve("gpt-4o").id == "a"
    assert names.resolve("jina-reranker", "rerank").id == "r"


@pytest.mark.parametrize(("models", "task"), [([spec("a"), E, F], "embed"), ([spec("a"), spec("b")], "rerank")])
def test_unknown_name_among_several_models_is_refused_with_the_known_ones(models: list[ModelSpec], task: Task) -> None:
    known = ", ".join(model.id for model in models)
    with pytest.raises(ModelNotFound, match=f"'x' not found; known models: {known}"):
        Names(models).resolve("x", task)


def test_management_requires_the_exact_name_even_of_a_single_model() -> None:
    with pytest.raises(ModelNotFound):
        Names([spec("a")]).exact("gpt-4o")


def test_names_of_cached_models_may_have_a_hub_and_a_longer_quantization() -> None:
    cached = {
        "org/m:Q8_0": "m-Q8_0.gguf",
        "org/m:Q4_K_XL": "m-UD-Q4_K_XL-00001-of-00002.gguf",
        "o/n:IQ2_M": "n.IQ2_M.gguf",
    }
    names = Names(
        [replace(spec(id_, aliases=("o/n",) if "o/n" in id_ else ()), path=Path(p)) for id_, p in cached.items()]
    )
    for name, found in (
        ("hf.co/org/m:q8_0", "org/m:Q8_0"),
        ("huggingface.co/o/n:latest", "o/n:IQ2_M"),
        ("org/m:ud-Q4_K_XL", "org/m:Q4_K_XL"),
        ("hf.co/org/m:UD-Q4_K_XL", "org/m:Q4_K_XL"),
    ):
        assert names.resolve(name).id == names.exact(name).id == found
    for name in ("o/n:UD-IQ2_M", "org/m:XL", "hf.co/hf.co/o/n"):
        with pytest.raises(ModelNotFound):
            names.resolve(name)


def test_tag_latest_of_ollama_is_optional() -> None:
    names = Names([spec("a"), spec("b:latest"), spec("c", aliases=("a:q4",))])
    assert names.resolve("a:latest").id == names.exact("a:latest").id == "a"
    assert names.resolve("b").id == "b:latest"
    assert names.resolve("a:q4:latest").id == "c"
    with pytest.raises(ModelNotFound):
        names.resolve("a:q8")
