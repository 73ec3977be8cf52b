"""Every template that there is to test with: those of the source distribution, and the built-in ones."""

from functools import cache

from server.templates.built_in import names, source_of
from server.templates.template import ChatTemplate
from tests.support.downloads import TEMPLATES

BUILT_IN = sorted(names())
DATES = {"datetime": "Nov 21 2026", "date_string": "21 Nov 2026"}


@cache
def template_of(name: str) -> ChatTemplate:
    """The template of that name; to compile one takes most of a test's time."""
    source = source_of(name) if name in BUILT_IN else (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>", add_bos=False, default_kwargs=DATES)
