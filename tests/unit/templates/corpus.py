"""The templates to test with: those of llama.cpp's source distribution, and the built-in ones."""

from functools import cache
from typing import Any

from server.templates.built_in import names, source_of
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATES

BUILT_IN = sorted(names())
DATES = {"datetime": "Nov 21 2026", "date_string": "21 Nov 2026"}


def make_template(source: str = "", **options: Any) -> ChatTemplate:
    return ChatTemplate(source, **{"bos_token": "", "eos_token": "", **options})


@cache
def template_of(name: str) -> ChatTemplate:
    """Return the named template, cached because compiling it takes most of a test's time."""
    source = source_of(name) if name in BUILT_IN else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", add_bos=False, default_kwargs=DATES)
