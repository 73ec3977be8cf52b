import pytest

from server.errors import ConfigError, InvalidRequest, ModelNotFound
from server.pool.names import Names
from tests.unit.pool.fakes import spec


def test_a_single_model_answers_to_any_name_and_to_none():
    names = Names([spec("a")])
    for name in ("a", "gpt-4o", "", None):
        assert names.resolve(name).id == "a"


def test_among_several_the_name_is_an_id_or_an_alias():
    names = Names([spec("a", aliases=("gpt-4o",)), spec("b")])
    assert names.resolve("gpt-4o").id == "a"
    assert names.resolve("b").id == "b"


@pytest.mark.parametrize("name", [None, ""])
def test_among_several_a_name_is_needed(name: str | None):
    with pytest.raises(InvalidRequest, match="model name is missing from the request") as caught:
        Names([spec("a"), spec("b")]).resolve(name)
    assert caught.value.param == "model"


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelNotFound, match="'x' not found; known models: a, b"):
        Names([spec("a"), spec("b")]).resolve("x")


def test_without_models_every_name_is_unknown():
    with pytest.raises(ModelNotFound, match="none"):
        Names([]).resolve("x")


def test_management_needs_the_exact_name_even_of_a_single_model():
    with pytest.raises(ModelNotFound):
        Names([spec("a")]).exact("gpt-4o")


def test_two_models_of_one_name_stop_the_start():
    with pytest.raises(ConfigError, match=r"models.yaml: models 'a' and 'b' are both called 'gpt-4o'"):
        Names([spec("a", aliases=("gpt-4o",)), spec("b", aliases=("gpt-4o",), source="models.yaml")])
