"""Shared by the loops of libraries, which run in environments without the project.

A step prints a line of JSON. An exception in a step does not end the loop.
"""

import json
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel

URL = os.environ["LLAMAPOOL_URL"]
MODEL = "scripted"
LONG = "OVERFLOW " + "lorem ipsum " * 12_000
WEATHER = {"Paris": "SUNNY-21", "Rome": "RAINY-15"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "The weather.", "parameters": SCHEMA}}


class Report(BaseModel):
    city: str
    sunny: bool


PARIS = Report(city="Paris", sunny=True)


def get_weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: its name
    """
    return WEATHER[city]


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print a step, which is done unless the body raises."""
    try:
        yield
    except Exception:  # noqa: BLE001 (libraries raise anything)
        print("\n" + json.dumps({"step": name, "done": False, "detail": traceback.format_exc()[-1200:]}), flush=True)
    else:
        print("\n" + json.dumps({"step": name, "done": True}), flush=True)


@contextmanager
def expect_error(kind: type[Exception] = Exception) -> Iterator[list[Exception]]:
    """Require that the body raises `kind`. The yielded list then contains the error."""
    errors: list[Exception] = []
    try:
        yield errors
    except kind as error:
        errors.append(error)
    else:
        raise AssertionError("no error")
