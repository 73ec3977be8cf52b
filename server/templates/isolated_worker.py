"""The process behind `isolated`: reads requests from its standard input, answers on its standard output.

Both ways a head (`HEAD`: kind, bytes) and a body: a pickle of the server's in, text out. The process can open no file
and no connection; it ends with its input, and by a signal when a request takes too much of the processor.
"""

import os
import pickle
import resource
import struct
import sys

from server.templates.rendering import InProcess, RenderFault, RenderRefusal, TemplateBroken

HEAD = struct.Struct("<1sQ")
CHECK, RENDER, OPENED = b"c", b"r", b"o"
TEXT, REFUSAL, BROKEN, FAULT = b"t", b"x", b"b", b"f"

# What imports modules when it is first used must have been used before no file can be opened any more.
_WARM_UP = (
    "{% for m in messages %}{{ '\\n' ~ m.role | trim }}{{ [m] | tojson }}{{ m | pprint }}{% endfor %}"
    "{{ strftime_now('%d %b %Y') }}{{ 'a b' | wordwrap(1) | urlize | striptags }}{{ lipsum(1) }}",
    "{{ raise_exception('no') }}",
    "{{ messages.nothing.at.all }}",
    "{% if %}",
)


def main(cpu_s: int, memory_bytes: int, text_bytes: int) -> None:
    """Serve until the input ends."""
    renderer = InProcess()
    for source in _WARM_UP:
        _answer(renderer, RENDER, pickle.dumps((source, {"messages": [{"role": "user"}]})))
    _confine(memory_bytes)
    while True:
        kind, size = HEAD.unpack(_read(HEAD.size))
        request = _read(size)
        _allow(cpu_s)
        answer, text = _answer(renderer, kind, request)
        body = text.encode("utf-8", "surrogatepass")
        if len(body) > text_bytes:
            answer, body = FAULT, f"the text has more than {text_bytes} bytes".encode()
        _write(HEAD.pack(answer, len(body)) + body)


def _answer(renderer: InProcess, kind: bytes, request: bytes) -> tuple[bytes, str]:
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
    except Exception as error:  # noqa: BLE001 - such as an import that finds no file: that is an answer, too
        return FAULT, f"{type(error).__name__}: {error}"


def _confine(memory_bytes: int) -> None:
    """From here on: no file, no socket, no more memory than that."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _allow(cpu_s: int) -> None:
    """So much more of the processor, then a signal that ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + cpu_s, hard))


def _read(n_bytes: int) -> bytes:
    parts: list[bytes] = []
    while n_bytes:
        part = os.read(0, min(n_bytes, 1 << 20))
        if not part:
            sys.exit(0)
        parts.append(part)
        n_bytes -= len(part)
    return b"".join(parts)


def _write(answer: bytes) -> None:
    view = memoryview(answer)
    while view:
        view = view[os.write(1, view) :]
