"""What llama-server accepts and Llamapool does not: names only, from llama-server's README (llama.cpp 0c1e570).

A name in `FIXED` is accepted in the form that says what Llamapool does anyway; the other form is refused, or skipped
with a warning where no reply depends on it. So are those in `DEAD_FLAGS`, which mean nothing to llama-server either.
"""

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
    Fixed(("-ag", "--agent"), ("-no-ag", "--no-agent"), "LLAMA_ARG_AGENT", False, "has no built-in tools"),
    Fixed(
        ("--ui-mcp-proxy", "--webui-mcp-proxy"),
        ("--no-ui-mcp-proxy", "--no-webui-mcp-proxy"),
        "LLAMA_ARG_UI_MCP_PROXY",
        False,
        "has no MCP proxy",
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
        ("-bs", "--backend-sampling"),
        (),
        "LLAMA_ARG_BACKEND_SAMPLING",
        False,
        "samples on the processor",
        matters=False,
    ),
    Fixed(("--repack",), ("-nr", "--no-repack"), "LLAMA_ARG_REPACK", True, "always repacks weights"),
    Fixed(("--log-jsonl",), ("--no-log-jsonl",), "LLAMA_ARG_LOG_JSONL", False, "does not log JSON lines"),
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

_FLAGS = """
-cl --cache-list --completion-bash --cpu-strict --poll -Cb --cpu-mask-batch
-Crb --cpu-range-batch --cpu-strict-batch --prio-batch --poll-batch --rpc -lzm --lazy-mode
--grammar --grammar-file -j --json-schema -jf --json-schema-file
-sp --special -mmu --mmproj-url
--video-fps --video-timestamp-interval --video-ffmpeg-dir --reuse-port
--ui-config --webui-config --ui-config-file --webui-config-file --tools --tools-runtime
--mcp-servers-config --mcp-servers-json
--log-prompts-dir
--spec-draft-cpu-mask -Cd --cpu-mask-draft
--spec-draft-cpu-range -Crd --cpu-range-draft --spec-draft-cpu-strict --cpu-strict-draft --spec-draft-prio
--prio-draft --spec-draft-poll --poll-draft --spec-draft-cpu-mask-batch -Cbd --cpu-mask-batch-draft
--spec-draft-cpu-range-batch -Crbd --cpu-range-batch-draft --spec-draft-cpu-strict-batch --cpu-strict-batch-draft
--spec-draft-prio-batch --prio-batch-draft --spec-draft-poll-batch --poll-batch-draft
--spec-draft-p-split --draft-p-split
--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-simple-min-hits --spec-ngram-map-k-min-hits
--embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-3b-default --fim-qwen-7b-default
--fim-qwen-7b-spec --fim-qwen-14b-spec --fim-qwen-30b-default --gpt-oss-20b-default --gpt-oss-120b-default
--vision-gemma-4b-default --vision-gemma-12b-default --spec-default
"""

_VARIABLES = """
RPC LAZY_MODE
MMPROJ_URL VIDEO_FPS
VIDEO_TIMESTAMP_INTERVAL VIDEO_FFMPEG_DIR REUSE_PORT UI_CONFIG UI_CONFIG_FILE TOOLS TOOLS_RUNTIME
MCP_SERVERS_CONFIG MCP_SERVERS_JSON
SPEC_DRAFT_P_SPLIT
DRAFT_MAX DRAFT_MIN
"""

FLAGS = frozenset(_FLAGS.split())
VARIABLES = frozenset("LLAMA_ARG_" + name for name in _VARIABLES.split())
DEAD_FLAGS = frozenset({"-dt", "--defrag-thold"})  # each takes a value
DEAD_VARIABLES = frozenset({"LLAMA_ARG_DEFRAG_THOLD"})
FIXED_FLAGS = {
    **{flag: (fixed, True) for fixed in FIXED for flag in fixed.on},
    **{flag: (fixed, False) for fixed in FIXED for flag in fixed.off},
}
FIXED_VARIABLES = {fixed.env: fixed for fixed in FIXED if fixed.env}


def dead(name: str) -> str:
    """The warning for a name of `DEAD_FLAGS` or `DEAD_VARIABLES`."""
    return f"{name} has no effect, nor has it in llama-server"


def refusal(name: str, remedy: str) -> str:
    """The one line for a name that only llama-server has."""
    return f"{name} is an option of llama-server that Llamapool does not support yet; {remedy}"
