"""Pairs of Llamapool and the real llama-server on the same model, most of them started once per session.

Each server has one thread and F32 weights, keys and values. The results then differ only by rounding, which is far less
than the difference between the logits of two tokens. Greedy output can therefore be compared token by token.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.model.oracle.comparison import Pair
from tests.support.oracle import Value, oracle
from tests.support.real_server import EXACT, ROOT, llamapool

DEMO = ROOT / "models" / "demo.gguf"
CHAT = "/v1/chat/completions"
Start = Callable[..., Pair]
N_SLOTS = 8
N_CTX = 8 * 1024
PASSIVE_WAIT = {"OMP_WAIT_POLICY": "passive"}  # idle compute threads do not spin, so the other server has the cores


@pytest.fixture(scope="session")
def pair(tiny_path: Path) -> Iterator[Pair]:
    """Both servers on a tiny model."""
    with ExitStack() as stack:
        yield start_pair(stack, tiny_path)


@pytest.fixture(scope="session")
def demo() -> Iterator[Pair]:
    """Both servers on the demo model, whose template supports tools and reasoning."""
    with ExitStack() as stack:
        yield start_pair(stack, DEMO)


REASONING_TEMPLATE = """
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}
{{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n' }}
{%- endif %}
"""
"""As in QwQ and DeepSeek R1, the prompt ends with the start tag of the reasoning."""


@pytest.fixture(scope="session")
def reasoning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both servers on the demo model with `REASONING_TEMPLATE` and a reasoning budget message."""
    file = tmp_path_factory.mktemp("template") / "reasoning.jinja"
    file.write_text(REASONING_TEMPLATE)
    message = " That is enough."
    flags = ("--chat-template-file", file, "--reasoning-budget-message", message)
    params: dict[str, Value] = {"chat_template": REASONING_TEMPLATE, "use_jinja": True}
    params |= {"sampling.reasoning_budget_message": message}
    with ExitStack() as stack:
        yield start_pair(stack, DEMO, n_parallel=2, flags=flags, params=params)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """``start(model, ...)``: `start_pair`, whose servers stop at the end of the module."""
    with ExitStack() as stack:
        yield partial(start_pair, stack)


def start_pair(
    stack: ExitStack,
    model: Path,
    *,
    n_ctx: int = N_CTX,
    n_parallel: int = N_SLOTS,
    flags: Sequence[object] = (),
    params: Mapping[str, Value] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Pair:
    """Start both servers and wait for both. `params` for llama-server must correspond to `flags` for Llamapool.

    Speculation is off unless `flags` turn it on, because its use depends on the machine and is reported in replies.
    """
    environment = {**PASSIVE_WAIT, **(environment or {})}
    theirs = oracle(
        model,
        n_ctx=n_ctx,
        n_parallel=n_parallel,
        n_threads=1,
        alias="tiny",
        params={"flash_attn_type": 0, "cache_type_k": 0, "cache_type_v": 0, **(params or {})},  # as `EXACT`
        environment=environment,
    )
    stack.callback(theirs.stop)
    fixed = ("-c", n_ctx, "-np", n_parallel, "-t", 1, "-a", "tiny", "--metrics", "--spec-type", "none", *EXACT)
    ours = llamapool(model, *map(str, (*fixed, *flags)), environment=environment)
    stack.callback(ours.stop)
    theirs.wait_until_ready()
    ours.wait_until_ready()
    return Pair(ours, theirs)
