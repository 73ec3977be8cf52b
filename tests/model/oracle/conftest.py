"""Llamapool and the real llama-server on the same tiny F32 model, started once for all tests of this folder.

One thread each and weights, keys and values in F32: both libraries then compute the same up to the rounding of another
instruction set, far below the distance between two tokens' logits, and greedy output can be compared token by token.
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
WAIT_QUIETLY = {"OMP_WAIT_POLICY": "passive"}  # idle compute threads leave the cores to the other server


@pytest.fixture(scope="session")
def pair(tiny_path: Path) -> Iterator[Pair]:
    """Both servers, ready."""
    with ExitStack() as stack:
        yield start_pair(stack, tiny_path)


@pytest.fixture(scope="session")
def demo() -> Iterator[Pair]:
    """Both on ``models/demo.gguf``, whose template knows tools and thoughts."""
    with ExitStack() as stack:
        yield start_pair(stack, DEMO)


THINK = """
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
"""As that of QwQ and DeepSeek R1: the prompt opens the thoughts."""


@pytest.fixture(scope="session")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Both on the default model with `THINK` and a message for the end of a spent budget; two slots of 4096 tokens."""
    file = tmp_path_factory.mktemp("template") / "think.jinja"
    file.write_text(THINK)
    message = " That is enough."
    flags = ("--chat-template-file", file, "--reasoning-budget-message", message)
    params: dict[str, Value] = {"chat_template": THINK, "use_jinja": True}
    params |= {"sampling.reasoning_budget_message": message}
    with ExitStack() as stack:
        yield start_pair(stack, DEMO, n_parallel=2, flags=flags, params=params)


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    """`start_pair`, whose servers end with the module."""
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
    """Start both, then wait for both. `params` tell llama-server what `flags` tell Llamapool.

    Speculation is off unless `flags` turn it on: its use depends on the machine, and replies report it.
    """
    environment = {**WAIT_QUIETLY, **(environment or {})}
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
    every = ("-c", n_ctx, "-np", n_parallel, "-t", 1, "-a", "tiny", "--metrics", "--spec-type", "none", *EXACT, *flags)
    ours = llamapool(model, *map(str, every), environment=environment)
    stack.callback(ours.stop)
    theirs.wait_until_ready()
    ours.wait_until_ready()
    return Pair(ours, theirs)
