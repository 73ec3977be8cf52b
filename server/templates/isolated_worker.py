"""Renders in a sandbox process (`server.sandbox`): reads the server's pickles and returns text."""

import pickle

from server.sandbox.worker import FAULT, Answer
from server.templates.in_process import InProcess
from server.templates.rendering import (
    BROKEN,
    CHECK,
    OPENED,
    REFUSAL,
    RENDER,
    TEXT,
    RenderFault,
    RenderRefusal,
    TemplateBroken,
)

# Features that import modules on first use must run before the sandbox denies opening files.
_WARM_UP = (
    "{% for m in messages %}{{ '\\n' ~ m.role | trim }}{{ [m] | tojson }}{{ m | pprint }}{% endfor %}"
    "{{ strftime_now('%d %b %Y') }}{{ 'a b' | wordwrap(1) | urlize | striptags }}{{ lipsum(1) }}",
    "{{ raise_exception('no') }}",
    "{{ messages.nothing.at.all }}",
    "{% if %}",
)


def answerer() -> Answer:
    """Create the function that handles `CHECK`, `RENDER` and `OPENED`."""
    renderer = InProcess()

    def answer(kind: bytes, request: bytes) -> tuple[bytes, bytes]:
        kind, text = _rendered(renderer, kind, request)
        return kind, text.encode("utf-8", "surrogatepass")

    for source in _WARM_UP:
        answer(RENDER, pickle.dumps((source, {"messages": [{"role": "user"}]})))
    return answer


def _rendered(renderer: InProcess, kind: bytes, request: bytes) -> tuple[bytes, str]:
    try:
        if kind == CHECK:
            (source,) = pickle.loads(request)  # noqa: S301 - the server's own
            renderer.check(source)
            return TEXT, ""
        source, arguments = pickle.loads(request)  # noqa: S301
        if kind == OPENED:
            opened, closed = renderer.render_opened(source, arguments)
            return TEXT, f"{len(opened)}\n{opened}{closed}"
        return TEXT, renderer.render(source, arguments)
    except RenderRefusal as refusal:
        return REFUSAL, str(refusal)
    except TemplateBroken as broken:
        return BROKEN, str(broken)
    except RenderFault as fault:
        return FAULT, str(fault)
