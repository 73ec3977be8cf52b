"""Calls of the model that ships, at a temperature at which it would write anything."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support.real_server import RealServer, llamapool_config

ROOT = Path(__file__).resolve().parents[3]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Get the weather in a city", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": WEATHER}]


@pytest.fixture(scope="module")
def demo() -> Iterator[RealServer]:
    """`config/default.yaml` as it ships, on a free port."""
    with llamapool_config(ROOT / "config" / "default.yaml", "-t", "1") as running:
        yield running


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_every_call_fits_its_schema_however_wild_the_model_is(demo: RealServer, choice: object) -> None:
    n_calls = 0
    for seed in range(6):
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": TOOLS,
            "tool_choice": choice,
            "temperature": 1.5 if choice != "auto" else 1.0,
            "seed": seed,
            "max_tokens": 200,
        }
        reply = demo.post("/v1/chat/completions", body)["choices"][0]
        for call in reply["message"].get("tool_calls", ()):
            n_calls += 1
            assert call["function"]["name"] == "get_weather"
            if reply["finish_reason"] != "length":
                jsonschema.validate(json.loads(call["function"]["arguments"]), PARAMETERS)
    assert n_calls >= (1 if choice == "auto" else 6)
