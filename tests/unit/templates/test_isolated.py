"""Templates in sandboxed processes: same text as in-process, no access to Python, bounded memory, time and output."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from server.errors import ConfigError, InvalidRequest
from server.sandbox.process import Process, WorkLimits
from server.templates import jinja
from server.templates.isolated import ANSWERER, IsolatedRenderer
from server.templates.rendering import Renderer, RenderFault, RenderRefusal, RenderStopped, TemplateBroken
from tests.unit.templates.corpus import make_template

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "hi \udc80 👋", "n": 1, "f": 1.5, "none": None, "yes": True}]
ARGUMENTS: dict[str, Any] = {"messages": MESSAGES, "huge": 10**12}
SHARED_LISTS = "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"  # noqa: E501
LONG = "{% set long = 'x' * 4000000 %}"


@pytest.fixture(scope="module")
def isolated() -> Iterator[IsolatedRenderer]:
    with closing(IsolatedRenderer(WorkLimits(cpu_s=100, wall_s=200, memory_bytes=256 << 20))) as renderer:
        yield renderer


@pytest.fixture(scope="module")
def one_second() -> Iterator[IsolatedRenderer]:
    """A renderer with one second of CPU time, which takes longer on a busy machine."""
    with closing(IsolatedRenderer(WorkLimits(cpu_s=1, wall_s=200))) as renderer:
        yield renderer


@pytest.fixture
def own_renderer() -> Iterator[IsolatedRenderer]:
    """A renderer whose processes no other test uses."""
    with closing(IsolatedRenderer()) as renderer:
        yield renderer


@pytest.fixture(scope="module", params=["in process", "isolated"])
def renderer(request: pytest.FixtureRequest) -> Renderer:
    if request.param == "isolated":
        isolated: Renderer = request.getfixturevalue("isolated")
        return isolated
    return jinja


def test_isolated_text_equals_in_process_text(isolated: IsolatedRenderer) -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m | tojson }}{{ m }}{% endfor %}{{ huge + 1 }}"
    assert isolated.render(source, ARGUMENTS) == jinja.render(source, ARGUMENTS)


def test_rendering_two_argument_sets_equals_two_renderings(renderer: Renderer) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}12\n\U0001f600{% endif %}"
    )
    messages = [{"role": "user", "content": "3\n\ud83d"}]
    both = [{"messages": messages, "add_generation_prompt": opened} for opened in (True, False)]
    assert renderer.render(source, *both) == [*renderer.render(source, both[0]), "3\n\ud83d\n"]
    with pytest.raises(RenderRefusal, match=r"^no$"):
        renderer.render("{{ raise_exception('no') }}", *both)


def test_errors_have_the_same_text_in_both_renderers(renderer: Renderer) -> None:
    with pytest.raises(RenderRefusal, match=r"^only one user$"):
        renderer.render("{{ raise_exception('only one user') }}", ARGUMENTS)
    with pytest.raises(RenderFault, match=r"^UndefinedError: 'x' is undefined$"):
        renderer.render("{{ x.y }}", ARGUMENTS)
    with pytest.raises(RenderFault, match=r"^TypeError: no loader for this environment specified$"):
        renderer.render("{% include 'file' %}", ARGUMENTS)
    with pytest.raises(TemplateBroken, match=r"^line 2: "):
        renderer.render("\n{% if %}", ARGUMENTS)
    assert renderer.render("{{ 1 }}", ARGUMENTS) == ["1"]


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ lipsum.__globals__.os.popen('id').read() }}",
        "{{ raise_exception.__globals__.json }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ dict.mro() }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '{a.__class__.__mro__}'.format_map({'a': ''}) }}",
        "{{ ('%s'|format).__self__.x }}",
        "{{ (messages|map('upper')).gi_frame.f_back.f_globals }}",
        "{{ ([''] | map(attribute='__class__') | first).__mro__ }}",
        "{% for x in [1] %}{{ loop.__init__.__globals__ }}{% endfor %}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os.getcwd() }}",
        "{{ open('/etc/passwd') }}",
    ],
)
def test_templates_cannot_access_python_internals_or_files(renderer: Renderer, source: str) -> None:
    with pytest.raises(RenderFault) as caught:
        renderer.render(source, ARGUMENTS)
    assert str(caught.value).partition(":")[0] in ("SecurityError", "UndefinedError", "TypeError")


def test_templates_cannot_modify_the_messages(renderer: Renderer) -> None:
    source = "{% set _ = messages.append(1) %}{% set _ = messages[0].update(role='x') %}{{ messages | length }}"
    for _ in range(2):
        assert renderer.render(source, ARGUMENTS) == ["2"]
    assert MESSAGES[0]["role"] == "user"
    assert len(MESSAGES) == 1


@pytest.mark.parametrize(
    "source",
    [
        "{{ '%*d' % (huge, 1) }}",
        "{{ '{:{}}'.format('x', huge) }}",
        "{{ 'a'.encode() * huge }}",
        "{{ [1] | batch(huge, 2) | list }}",
        LONG + "{{ long.replace('x', long) | length }}",
        "{{ ('x' * 100000) | wordwrap(1, True, 'y' * 1000000) | length }}",
        "{% set n = namespace(s='x' * 16000000) %}{% for i in range(40) %}{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}{% endfor %}",  # noqa: E501
        "{% set l = [1] %}{% for i in range(60) %}{% set _ = l.extend(l) %}{% endfor %}",
        LONG + "{% set n = namespace(l=[]) %}{% for i in range(9999) %}{% set n.l = n.l + [long[1:]] %}{% endfor %}",
    ],
)
def test_memory_limit_stops_a_rendering(isolated: IsolatedRenderer, source: str) -> None:
    with pytest.raises(RenderFault, match=r"Memory|MiB of memory"):
        isolated.render(source, ARGUMENTS)
    assert isolated.render("{{ 1 }}", {}) == ["1"]


@pytest.mark.parametrize(
    "source",
    [
        SHARED_LISTS + "{{ n.a == n.b }}",  # one operation that never releases the GIL
        "{{ 42.5 | round(huge, 'ceil') }}",
        LONG + "{% for i in range(90000) %}{{ long.count('y') }}{% endfor %}",
    ],
)
def test_cpu_time_limit_stops_a_rendering_without_cpu_time_of_the_caller(
    one_second: IsolatedRenderer, source: str
) -> None:
    start_s = time.thread_time()
    with pytest.raises(RenderStopped, match="more than 1 s of CPU time"):
        one_second.render(source, ARGUMENTS)
    assert time.thread_time() - start_s < 0.5
    assert one_second.render("{{ 1 }}", {}) == ["1"]


def test_wall_time_limit_stops_a_rendering() -> None:
    limits = WorkLimits(cpu_s=30, wall_s=0.5)
    with closing(IsolatedRenderer(limits)) as renderer, pytest.raises(RenderStopped, match=r"more than 0\.5 s"):
        renderer.render(SHARED_LISTS + "{{ n.a == n.b }}", ARGUMENTS)


def test_output_size_is_limited() -> None:
    with closing(IsolatedRenderer(WorkLimits(answer_bytes=1000))) as renderer:
        with pytest.raises(RenderFault, match="1000 bytes"):
            renderer.render("{{ 'ä' * 499 }}", {})
        assert renderer.render("{{ 'ä' * 498 }}", {}) == ["ä" * 498]  # the length takes four bytes


def test_too_deeply_nested_arguments_are_rejected(isolated: IsolatedRenderer) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RenderFault, match="RecursionError"):
        isolated.render("{{ 1 }}", {"x": deep})


def test_dead_process_is_replaced(own_renderer: IsolatedRenderer) -> None:
    assert own_renderer.render("{{ 1 }}", {}) == ["1"]
    (worker,) = own_renderer._idle
    worker._process.kill()
    worker._process.wait()
    assert own_renderer.render("{{ 2 }}", {}) == ["2"]


def test_rendering_is_retried_after_its_process_is_killed(own_renderer: IsolatedRenderer) -> None:
    own_renderer.render("{{ 1 }}", {})
    (worker,) = own_renderer._idle
    os.kill(worker.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(own_renderer.render, "{{ text | length }}", {"text": "x" * 1_000_000})
        while own_renderer._idle:  # until the rendering uses it
            threading.Event().wait(0.001)
        os.kill(worker.pid, signal.SIGKILL)
        assert answer.result(60) == ["1000000"]


def test_wall_time_limit_covers_a_process_that_does_not_read_its_input() -> None:
    worker = Process(ANSWERER, WorkLimits(wall_s=0.2))
    os.kill(worker.pid, signal.SIGSTOP)
    with closing(IsolatedRenderer(WorkLimits(wall_s=0.2))) as renderer:
        renderer._idle.append(worker)
        with pytest.raises(RenderStopped, match=r"it took more than 0\.2 s"):
            renderer.render("{{ text }}", {"text": "x" * 1_000_000})


def test_process_environment_has_the_time_zone_and_no_secrets(
    monkeypatch: pytest.MonkeyPatch, own_renderer: IsolatedRenderer
) -> None:
    monkeypatch.setenv("TZ", "XXX-11:30")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    assert own_renderer.render("{{ strftime_now('%z %Z') }}", {}) == ["+1130 XXX"]
    (worker,) = own_renderer._idle
    assert b"secret" not in Path(f"/proc/{worker.pid}/environ").read_bytes()


def test_endless_template_is_rejected_at_load(one_second: IsolatedRenderer) -> None:
    source = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}" + SHARED_LISTS
    with pytest.raises(ConfigError, match="the chat template can't be used: it took more than 1 s"):
        make_template(source + "{{ n.a == n.b }}", renderer=one_second)


def test_request_that_exceeds_the_memory_limit_is_an_invalid_request(isolated: IsolatedRenderer) -> None:
    source = "{{ messages[0].content }}{% if huge is defined %}{{ 'a'.encode() * huge }}{% endif %}"
    template = make_template(source, renderer=isolated)
    user = {"role": "user", "content": "hi"}
    assert template.render([user]).text == "hi"
    with pytest.raises(InvalidRequest, match="the chat template failed on them: MemoryError"):
        template.render([user], kwargs={"huge": 10**12})
