"""Templates in processes of their own: the same text, nothing let out, and an end to whatever takes too much."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.errors import ConfigError, InvalidRequest
from server.sandbox.process import Process, WorkLimits
from server.templates import jinja
from server.templates.isolated import ANSWERER, IsolatedRenderer
from server.templates.rendering import Renderer, RenderFault, RenderRefusal, RenderStopped, TemplateBroken
from server.templates.template import ChatTemplate

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "user", "content": "hi \udc80 👋", "n": 1, "f": 1.5, "none": None, "yes": True}]
GIVEN: dict[str, Any] = {"messages": MESSAGES, "huge": 10**12}
GROWN = "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"  # noqa: E501
LONG = "{% set long = 'x' * 4000000 %}"


@pytest.fixture(scope="module")
def isolated() -> Iterator[IsolatedRenderer]:
    renderer = IsolatedRenderer(WorkLimits(cpu_s=100, wall_s=200, memory_bytes=256 << 20))
    yield renderer
    renderer.close()


@pytest.fixture(scope="module")
def hasty() -> Iterator[IsolatedRenderer]:
    renderer = IsolatedRenderer(WorkLimits(cpu_s=1, wall_s=200))  # a busy machine takes long to give it a second
    yield renderer
    renderer.close()


@pytest.fixture(scope="module", params=["in process", "isolated"])
def renderer(request: pytest.FixtureRequest) -> Renderer:
    if request.param == "isolated":
        found: Renderer = request.getfixturevalue("isolated")
        return found
    return jinja


def test_the_text_is_the_same_in_another_process(isolated: IsolatedRenderer) -> None:
    source = "{% for m in messages %}{{ m.role }}{{ m.content }}{{ m | tojson }}{{ m }}{% endfor %}{{ huge + 1 }}"
    assert isolated.render(source, GIVEN) == jinja.render(source, GIVEN)


def test_both_texts_of_one_question_are_those_of_two(renderer: Renderer) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}12\n\U0001f600{% endif %}"
    )
    messages = [{"role": "user", "content": "3\n\ud83d"}]
    given = [{"messages": messages, "add_generation_prompt": opens} for opens in (True, False)]
    assert renderer.render(source, *given) == [*renderer.render(source, given[0]), "3\n\ud83d\n"]
    with pytest.raises(RenderRefusal, match=r"^no$"):
        renderer.render("{{ raise_exception('no') }}", *given)


def test_what_is_wrong_is_said_in_the_same_words(renderer: Renderer) -> None:
    with pytest.raises(RenderRefusal, match=r"^only one user$"):
        renderer.render("{{ raise_exception('only one user') }}", GIVEN)
    with pytest.raises(RenderFault, match=r"^UndefinedError: 'x' is undefined$"):
        renderer.render("{{ x.y }}", GIVEN)
    with pytest.raises(RenderFault, match=r"^TypeError: no loader for this environment specified$"):
        renderer.render("{% include 'file' %}", GIVEN)
    with pytest.raises(TemplateBroken, match=r"^line 2: "):
        renderer.render("\n{% if %}", GIVEN)
    assert renderer.render("{{ 1 }}", GIVEN) == ["1"]


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
def test_the_sandbox_lets_nothing_out(renderer: Renderer, source: str) -> None:
    with pytest.raises(RenderFault) as found:
        renderer.render(source, GIVEN)
    assert str(found.value).partition(":")[0] in ("SecurityError", "UndefinedError", "TypeError")


def test_what_a_template_changes_are_copies(renderer: Renderer) -> None:
    source = "{% set _ = messages.append(1) %}{% set _ = messages[0].update(role='x') %}{{ messages | length }}"
    for _ in range(2):
        assert renderer.render(source, GIVEN) == ["2"]
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
def test_memory_has_an_end(isolated: IsolatedRenderer, source: str) -> None:
    with pytest.raises(RenderFault, match=r"Memory|MiB of memory"):
        isolated.render(source, GIVEN)
    assert isolated.render("{{ 1 }}", {}) == ["1"]


@pytest.mark.parametrize(
    "source",
    [
        GROWN + "{{ n.a == n.b }}",  # one operation that never lets go of the interpreter
        "{{ 42.5 | round(huge, 'ceil') }}",
        LONG + "{% for i in range(90000) %}{{ long.count('y') }}{% endfor %}",
    ],
)
def test_time_has_an_end_and_costs_this_process_nothing(hasty: IsolatedRenderer, source: str) -> None:
    began = time.thread_time()
    with pytest.raises(RenderStopped, match="more than 1 s of CPU time"):
        hasty.render(source, GIVEN)
    assert time.thread_time() - began < 0.5
    assert hasty.render("{{ 1 }}", {}) == ["1"]


def test_a_rendering_that_only_waits_ends_too() -> None:
    renderer = IsolatedRenderer(WorkLimits(cpu_s=30, wall_s=0.5))
    with pytest.raises(RenderStopped, match=r"more than 0\.5 s"):
        renderer.render(GROWN + "{{ n.a == n.b }}", GIVEN)
    renderer.close()


def test_text_has_an_end() -> None:
    renderer = IsolatedRenderer(WorkLimits(answer_bytes=1000))
    with pytest.raises(RenderFault, match="1000 bytes"):
        renderer.render("{{ 'ä' * 499 }}", {})
    assert renderer.render("{{ 'ä' * 498 }}", {}) == ["ä" * 498]  # and four bytes for its length
    renderer.close()


def test_what_nests_too_deeply_for_another_process_is_refused(isolated: IsolatedRenderer) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RenderFault, match="RecursionError"):
        isolated.render("{{ 1 }}", {"x": deep})


def test_a_process_that_has_died_is_replaced() -> None:
    renderer = IsolatedRenderer()
    assert renderer.render("{{ 1 }}", {}) == ["1"]
    (worker,) = renderer._idle
    worker._process.kill()
    worker._process.wait()
    assert renderer.render("{{ 2 }}", {}) == ["2"]
    renderer.close()


def test_a_process_that_is_killed_at_work_costs_a_second_try() -> None:
    renderer = IsolatedRenderer()
    renderer.render("{{ 1 }}", {})
    (worker,) = renderer._idle
    os.kill(worker.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(renderer.render, "{{ text | length }}", {"text": "x" * 1_000_000})
        while renderer._idle:  # until it is taken
            threading.Event().wait(0.001)
        os.kill(worker.pid, signal.SIGKILL)
        assert answer.result(60) == ["1000000"]
    renderer.close()


def test_a_process_that_takes_nothing_in_is_waited_for_so_long_and_no_longer() -> None:
    renderer = IsolatedRenderer(WorkLimits(wall_s=0.2))
    worker = Process(ANSWERER, WorkLimits(wall_s=0.2))
    os.kill(worker.pid, signal.SIGSTOP)
    renderer._idle.append(worker)
    with pytest.raises(RenderStopped, match=r"it took more than 0\.2 s"):
        renderer.render("{{ text }}", {"text": "x" * 1_000_000})
    renderer.close()


def test_the_process_knows_the_time_zone_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XXX-11:30")
    monkeypatch.setenv("LLAMA_API_KEY", "secret")
    renderer = IsolatedRenderer()
    assert renderer.render("{{ strftime_now('%z %Z') }}", {}) == ["+1130 XXX"]
    (worker,) = renderer._idle
    assert b"secret" not in Path(f"/proc/{worker.pid}/environ").read_bytes()
    renderer.close()


def test_a_model_with_an_endless_template_is_refused_when_it_is_loaded(hasty: IsolatedRenderer) -> None:
    source = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}" + GROWN
    with pytest.raises(ConfigError, match="the chat template can't be used: it took more than 1 s"):
        ChatTemplate(source + "{{ n.a == n.b }}", bos_token="", eos_token="", renderer=hasty)


def test_a_request_whose_prompt_takes_too_much_is_a_clients_mistake(isolated: IsolatedRenderer) -> None:
    source = "{{ messages[0].content }}{% if huge is defined %}{{ 'a'.encode() * huge }}{% endif %}"
    template = ChatTemplate(source, bos_token="", eos_token="", renderer=isolated)
    user = {"role": "user", "content": "hi"}
    assert template.render([user]).text == "hi"
    with pytest.raises(InvalidRequest, match="the chat template failed on them: MemoryError"):
        template.render([user], kwargs={"huge": 10**12})
