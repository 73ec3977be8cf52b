"""What llama-server accepts and Llamapool does not: names only, from llama-server's README (llama.cpp 0c1e570).

A name in `FIXED` is accepted in the form that says what Llamapool does anyway; the other form is refused, or skipped
with a warning where no reply depends on it. So are those in `DEAD_FLAGS`, which mean nothing to llama-server either.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from server.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Fixed:
    """A boolean of llama-server that has one value here."""

    on: tuple[str, ...]
    off: tuple[str, ...]
    env: str
    value: bool | None  # None: neither form asks for anything
    reason: str  # completes "Llamapool ..."
    matters: bool = True  # False: the other form changes no reply, so that it is skipped with a warning

    def refuse(self, name: str, remedy: str) -> str:
        """What to say of `name`, which asks for the other form: the warning. Raises ConfigError where it matters."""
        if self.matters:
            raise ConfigError(f"{name} cannot be honoured: Llamapool {self.reason}; {remedy}")
        return f"{name} has no effect: Llamapool {self.reason}"


FIXED = (
    Fixed(
        ("-cb", "--cont-batching"),
        ("-nocb", "--no-cont-batching"),
        "LLAMA_ARG_CONT_BATCHING",
        True,
        "always batches continuously",
    ),
    Fixed(
        ("--cache-idle-slots",),
        ("--no-cache-idle-slots",),
        "LLAMA_ARG_CACHE_IDLE_SLOTS",
        True,
        "keeps what idle slots hold until others need their cells, then in RAM (cache_ram 0: not there)",
        matters=False,
    ),
    Fixed(("-e", "--escape"), ("--no-escape",), "", None, "reads no prompts from flags or files", matters=False),
    Fixed(("--perf",), ("--no-perf",), "LLAMA_ARG_PERF", False, "does not print the library's timings", matters=False),
    Fixed(
        ("--skip-chat-parsing",),
        ("--no-skip-chat-parsing",),
        "LLAMA_ARG_SKIP_CHAT_PARSING",
        False,
        "always parses chat replies",
    ),
    Fixed(
        ("--spec-draft-backend-sampling",),
        ("--no-spec-draft-backend-sampling",),
        "LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        False,
        "reads a draft model's logits itself",
        matters=False,
    ),
)

_RUNTIME = "enters no container: its tools work on this machine"
_REMOVED = "has no such option, nor has llama-server any more"
_REFUSED = {
    "reads videos by FFmpeg's libraries, which its extra video brings, and starts no program": """
        --video-ffmpeg-dir LLAMA_ARG_VIDEO_FFMPEG_DIR
    """,
    _RUNTIME: "--tools-runtime LLAMA_ARG_TOOLS_RUNTIME",
    "writes nothing of what its users say to disk": "--log-prompts-dir",
    "gives every model the same time to end (drain_s)": "stop-timeout",
    _REMOVED: """
        --spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-simple-min-hits
        --spec-ngram-map-k-min-hits LLAMA_ARG_DRAFT_MAX LLAMA_ARG_DRAFT_MIN
    """,
}
_IN_LLAMA_SERVER = "nor has it in llama-server"
_SPINS = "as the library's threads are OpenMP's, which wait as OMP_WAIT_POLICY and GOMP_SPINCOUNT say"
_ONE_PRIORITY = "as the threads of an instance have one priority, also for its draft model: --prio"
_DEAD = {
    _IN_LLAMA_SERVER: """
        -dt --defrag-thold LLAMA_ARG_DEFRAG_THOLD
        --spec-draft-p-split --draft-p-split LLAMA_ARG_SPEC_DRAFT_P_SPLIT
    """,
    _SPINS: "--poll --poll-batch --spec-draft-poll --poll-draft --spec-draft-poll-batch --poll-batch-draft",
    _ONE_PRIORITY: """
        --prio-batch --spec-draft-prio --prio-draft --spec-draft-prio-batch --prio-batch-draft
    """,
}
"""Each takes a value, and no reply depends on it; by the reason, which completes "... has no effect,"."""


def _by_name(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: reason for reason, names in texts.items() for name in names.split()}


_REFUSALS, _REASONS = _by_name(_REFUSED), _by_name(_DEAD)
FLAGS = frozenset(name for name in _REFUSALS if name.startswith("-"))
VARIABLES = frozenset(_REFUSALS) - FLAGS
DEAD_FLAGS = frozenset(name for name in _REASONS if name.startswith("-"))
DEAD_VARIABLES = frozenset(_REASONS) - DEAD_FLAGS
FIXED_FLAGS = {
    **{flag: (fixed, True) for fixed in FIXED for flag in fixed.on},
    **{flag: (fixed, False) for fixed in FIXED for flag in fixed.off},
}
FIXED_VARIABLES = {fixed.env: fixed for fixed in FIXED if fixed.env}


def dead(name: str) -> str:
    """The warning for a name of `DEAD_FLAGS` or `DEAD_VARIABLES`; a preset's keys lack the dashes."""
    return f"{name} has no effect, {_reason(_REASONS, name)}"


def dead_flags() -> Iterator[tuple[str, list[str]]]:
    """Why they have no effect, and the flags."""
    return _flags(_DEAD)


def refused_flags() -> Iterator[tuple[str, list[str]]]:
    """Why they are refused, and the flags."""
    return _flags(_REFUSED)


def _flags(texts: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    for reason, names in texts.items():
        if flags := [name for name in names.split() if name.startswith("-")]:
            yield reason, flags


def refusal(name: str, remedy: str) -> str:
    """The one line for a name that only llama-server has; a preset's keys lack the dashes, and may have quotes."""
    return f"{name} is an option of llama-server's; Llamapool {_reason(_REFUSALS, name)}; {remedy}"


def _reason(reasons: Mapping[str, str], name: str) -> str:
    bare = name.strip("'")
    return next(reasons[found] for found in (bare, f"--{bare}", f"-{bare}") if found in reasons)
