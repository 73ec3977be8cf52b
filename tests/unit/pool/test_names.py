import pytest

from server.errors import ModelNotFound
from server.pool.names import Names
from tests.unit.pool.fakes import spec


def test_a_single_model_answers_to_any_name_and_to_none() -> None:
    names = Names([spec("a")])
    for name in ("a", "gpt-4o", "", None):
        assert names.resolve(name).id == "a"


@pytest.mark.parametrize("name", [None, ""])
def test_without_a_name_the_first_model_that_can_do_it_is_meant(name: str | None) -> None:
    names = Names(
        [spec("e", pooling="mean"), spec("a"), spec("r", pooling="rank"), spec("b"), spec("f", embedding=True)]
    )
    assert names.resolve(name).id == "a"
    assert names.resolve(name, "embed").id == "e"
    assert names.resolve(name, "rerank").id == "r"


def test_the_only_model_that_can_do_it_answers_to_any_name() -> None:
    names = Names([spec("a"), spec("e", embedding=True), spec("f", pooling="last"), spec("r", pooling="rank")])
    assert names.resolve("gpt-4o").id == "a"
    assert names.resolve("jina-reranker", "rerank").id == "r"
    with pytest.raises(ModelNotFound):
        names.resolve("text-embedding-3-small", "embed")


def test_without_a_model_for_it_the_first_one_is_meant() -> None:
    names = Names([spec("a"), spec("b")])
    assert names.resolve(None, "rerank").id == "a"
    with pytest.raises(ModelNotFound):
        names.resolve("x", "rerank")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ModelNotFound, match="'x' not found; known models: a, b"):
        Names([spec("a"), spec("b")]).resolve("x")


def test_management_needs_the_exact_name_even_of_a_single_model() -> None:
    with pytest.raises(ModelNotFound):
        Names([spec("a")]).exact("gpt-4o")


def test_ollamas_tag_for_a_name_without_one_may_be_there_or_not() -> None:
    names = Names([spec("a"), spec("b:latest"), spec("c", aliases=("a:q4",))])
    assert names.resolve("a:latest").id == names.exact("a:latest").id == "a"
    assert names.resolve("b").id == "b:latest"
    assert names.resolve("a:q4:latest").id == "c"
    with pytest.raises(ModelNotFound):
        names.resolve("a:q8")
