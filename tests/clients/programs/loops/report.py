"""What the loops of libraries share: they run in environments of their own, without the project.

A step prints one line of JSON. Nothing a step raises ends the loop.
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
    """One part of the loop: done unless it raises."""
    try:
        yield
    except Exception:  # noqa: BLE001 (whatever a library raises)
        print("\n" + json.dumps({"step": name, "done": False, "detail": traceback.format_exc()[-1200:]}), flush=True)
    else:
        print("\n" + json.dumps({"step": name, "done": True}), flush=True)


@contextmanager
def refused(kind: type[Exception] = Exception) -> Iterator[list[Exception]]:
    """What is inside must raise: the error is the list's only item then."""
    told: list[Exception] = []
    try:
        yield told
    except kind as error:  # (loops name the narrowest that a library has)
        told.append(error)
    else:
        raise AssertionError("no error")
