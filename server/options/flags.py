"""llama-server's flags and variables, as sources of the settings.

Options of llama-server that set nothing in Llamapool are listed here: from its README (llama.cpp 0c1e570).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server.errors import ConfigError
from server.options.option import Option, SourcedValue
from server.options.sources import OptionSource, is_service_link
from server.options.table import TABLE, nearest
from server.options.values import FALSE

_FIM = "--port 8012 -ub 1024 -b 1024 -c 0 --cache-reuse 256"
_OSS = "--port 8013 -ub 2048 -b 32768 -np 2 -c 262144 --temp 1 --top-p 1 --top-k 0 --min-p 0.01"
_DRAFT = "-hfd ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
_VISION = "--port 8014 -c 0"

SHORTHANDS = {
    "--embd-gemma-default": "-hf ggml-org/embeddinggemma-300M-qat-q4_0-GGUF -hff embeddinggemma-300M-qat-Q4_0.gguf "
    "--port 8011 -ub 2048 -b 2048 -np 32 -c 65536 --embedding",
    "--fim-qwen-1.5b-default": "-hf ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF -hff qwen2.5-coder-1.5b-q8_0.gguf " + _FIM,
    "--fim-qwen-3b-default": "-hf ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF -hff qwen2.5-coder-3b-q8_0.gguf " + _FIM,
    "--fim-qwen-7b-default": "-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf " + _FIM,
    "--fim-qwen-7b-spec": f"-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf {_DRAFT} {_FIM}",
    "--fim-qwen-14b-spec": f"-hf ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF -hff qwen2.5-coder-14b-q8_0.gguf {_DRAFT} {_FIM}",
    "--fim-qwen-30b-default": "-hf ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF "
    "-hff qwen3-coder-30b-a3b-instruct-q8_0.gguf " + _FIM,
    "--gpt-oss-20b-default": "-hf ggml-org/gpt-oss-20b-GGUF -hff gpt-oss-20b-mxfp4.gguf " + _OSS,
    "--gpt-oss-120b-default": "-hf ggml-org/gpt-oss-120b-GGUF " + _OSS,
    "--vision-gemma-4b-default": "-hf ggml-org/gemma-3-4b-it-qat-GGUF " + _VISION,
    "--vision-gemma-12b-default": "-hf ggml-org/gemma-3-12b-it-qat-GGUF " + _VISION,
    "--spec-default": "--spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-max 64",
}
CONFIG_FLAG = "--config"
COMPLETION_FLAG = "--completion-bash"
DEVICES_FLAG = "--list-devices"


@dataclass(frozen=True, slots=True)
class ForeignOption:
    """Flags and variables of llama-server that set nothing in Llamapool; ``reason`` says why.

    ``names`` are refused, or skipped with a warning (``is_refused`` False) if no reply depends on them. Of a boolean,
    ``met`` are the names that ask for what Llamapool does anyway. ``has_value``: the flags take a value.
    """

    names: str
    reason: str
    is_refused: bool = True
    met: str = ""
    has_value: bool = False


def _skipped(names: str, reason: str, met: str = "") -> ForeignOption:
    return ForeignOption(names, reason, is_refused=False, met=met)


def _valued(names: str, reason: str) -> ForeignOption:
    return ForeignOption(names, reason, is_refused=False, has_value=True)


FOREIGN_OPTIONS = (
    ForeignOption(
        "-nocb --no-cont-batching LLAMA_ARG_NO_CONT_BATCHING",
        "Llamapool always batches continuously",
        met="-cb --cont-batching LLAMA_ARG_CONT_BATCHING",
    ),
    _skipped(
        "--no-cache-idle-slots LLAMA_ARG_NO_CACHE_IDLE_SLOTS",
        "Llamapool keeps the KV cache of idle slots until other requests need the cells, then in RAM (cache_ram 0: not "
        "in RAM)",
        met="--cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS",
    ),
    _skipped("-e --escape --no-escape", "Llamapool reads no prompts from flags or files"),
    _skipped(
        "--perf LLAMA_ARG_PERF",
        "Llamapool does not print the library's timings",
        met="--no-perf LLAMA_ARG_NO_PERF",
    ),
    ForeignOption(
        "--skip-chat-parsing LLAMA_ARG_SKIP_CHAT_PARSING",
        "Llamapool always parses chat replies",
        met="--no-skip-chat-parsing LLAMA_ARG_NO_SKIP_CHAT_PARSING",
    ),
    _skipped(
        "--spec-draft-backend-sampling LLAMA_ARG_SPEC_DRAFT_BACKEND_SAMPLING",
        "Llamapool samples from a draft model's logits on the CPU",
        met="--no-spec-draft-backend-sampling LLAMA_ARG_NO_SPEC_DRAFT_BACKEND_SAMPLING",
    ),
    ForeignOption(
        "--video-ffmpeg-dir LLAMA_ARG_VIDEO_FFMPEG_DIR",
        "Llamapool decodes videos with the FFmpeg libraries of its extra `video` and starts no program",
    ),
    ForeignOption(
        "--tools-runtime LLAMA_ARG_TOOLS_RUNTIME", "Llamapool runs tools on this machine, not in a container"
    ),
    ForeignOption("--moe-cache-mib", "it needs llama.cpp b11480 or newer, and llama-cpp-python 0.3.36 contains b11312"),
    _valued(
        "--spec-draft-sampling",
        "Llamapool drafts the most probable token, as llama-server does with `greedy`; replies are the same",
    ),
    ForeignOption("--log-prompts-dir", "Llamapool does not write prompts to disk"),
    ForeignOption(
        "-lcs --lookup-cache-static -lcd --lookup-cache-dynamic",
        "Llamapool looks n-grams up in the request's own text, not in files; use --spec-type auto",
    ),
    ForeignOption(
        "--spec-ngram-map-k4v-min-hits --spec-ngram-mod-n-min",
        "Llamapool drafts what followed the newest match; use --spec-ngram-map-k4v-size-m or --spec-ngram-mod-n-max",
    ),
    ForeignOption("stop-timeout", "Llamapool has one shutdown time for all models: drain_s"),
    ForeignOption(
        "--spec-ngram-size-n --spec-ngram-size-m --spec-ngram-min-hits --spec-ngram-simple-min-hits "
        "--spec-ngram-map-k-min-hits LLAMA_ARG_DRAFT_MAX LLAMA_ARG_DRAFT_MIN",
        "Llamapool does not have this option, and current versions of llama-server do not have it either",
    ),
    _valued(
        "-dt --defrag-thold LLAMA_ARG_DEFRAG_THOLD --spec-draft-p-split --draft-p-split LLAMA_ARG_SPEC_DRAFT_P_SPLIT",
        "llama-server ignores it too",
    ),
    _valued(
        "--poll --poll-batch --spec-draft-poll --poll-draft --spec-draft-poll-batch --poll-batch-draft",
        "the library's threads are OpenMP's; set OMP_WAIT_POLICY or GOMP_SPINCOUNT instead",
    ),
    _valued(
        "--prio-batch --spec-draft-prio --prio-draft --spec-draft-prio-batch --prio-batch-draft",
        "all threads of an instance, including its draft model's, have one priority; set --prio instead",
    ),
)
FOREIGN = {name: option for option in FOREIGN_OPTIONS for name in f"{option.names} {option.met}".split()}


class LlamaOptions(OptionSource):
    """Options as llama-server has them: each one is the server's, or applies to every model."""

    def skip(self, name: str, shown: str, remedy: str, *, on: bool = True) -> bool:
        """Skip an option that sets nothing in Llamapool; return whether `name` is one.

        Warns unless Llamapool does what the option asks for. `shown` is its name in messages. `on` False means that a
        boolean is switched off. Raises ConfigError if the option is refused.
        """
        option = FOREIGN.get(name)
        if option is not None and not (option.met and (name in option.met.split()) is on):
            if option.is_refused:
                raise ConfigError(f"{shown} is not supported: {option.reason}; {remedy}")
            self.skipped.append(f"{shown} has no effect: {option.reason}")
        return option is not None


class CommandLine(LlamaOptions):
    """Reads a command line by llama-server's rules (llama.cpp common/arg.cpp, common_params_parse_ex).

    - A flag is never abbreviated. In ``--long`` flags ``_`` counts as ``-``.
    - A flag's value is the next word, also if it starts with a dash (``-r -stop``). ``--flag=value`` works too.
    - A shorthand (``--fim-qwen-3b-default``) is replaced by several flags.

    ``config_file`` is the path of the YAML file. Raises ConfigError for an unknown flag or a missing value.
    """

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__()
        self.config_file = ""
        words = [each for word in argv for each in (SHORTHANDS[word].split() if word in SHORTHANDS else (word,))]
        while words:
            flag, equals, text = words.pop(0), "", ""
            if flag.startswith("--"):
                flag, equals, text = flag.partition("=")
                flag = flag.replace("_", "-")
            inline = text if equals else None
            if flag == CONFIG_FLAG:
                self.config_file = _value(flag, inline, words)
            elif flag in TABLE.by_flag:
                self._set(TABLE.by_flag[flag], flag, inline, words)
            elif not self.skip(flag, flag, "remove it"):
                raise ConfigError(_unknown(flag))
            elif FOREIGN[flag].has_value:
                _value(flag, inline, words)

    def _set(self, entry: Option, flag: str, inline: str | None, words: list[str]) -> None:
        layer = self.sections[entry.section]
        if flag in entry.constants or entry.is_switch:
            if inline is not None:
                raise ConfigError(f"{flag} takes no value; write {flag} alone")
            value = entry.constants.get(flag, True)
        else:
            value = entry.parse(_value(flag, inline, words, entry.n_words), flag)
            if entry.repeat and entry.key in layer:
                value = [*layer[entry.key].value, *value]
        for key in entry.replaces:  # of two flags that exclude each other, the later one applies
            layer.pop(key, None)
        layer[entry.key] = SourcedValue(value, flag)


def _value(flag: str, inline: str | None, words: list[str], n_words: int = 1) -> str:
    """Return the flag's value; several words are joined by spaces."""
    if inline is not None:
        return inline
    if len(words) < n_words:
        needed = "a value" if n_words == 1 else f"{n_words} values"
        raise ConfigError(f"{flag} needs {needed}; see --help")
    return " ".join(words.pop(0) for _ in range(n_words))


def _unknown(flag: str) -> str:
    known = [*TABLE.by_flag, CONFIG_FLAG, "--help", "--version", "--cache-list", COMPLETION_FLAG, DEVICES_FLAG]
    otherwise = "; see --help"
    if flag.endswith(".gguf"):
        otherwise = f"; to serve this model, write -m {flag}"
    elif flag.endswith((".yaml", ".yml")):
        otherwise = f"; to use this configuration, write {CONFIG_FLAG} {flag}"
    return f"unknown argument '{flag}'" + nearest(flag, known, otherwise)


_LLAMA = "LLAMA_ARG_"
_NEGATED = "LLAMA_ARG_NO_"


class LlamaVariables(LlamaOptions):
    """Reads ``LLAMA_ARG_*`` and ``LLAMA_API_KEY`` as llama-server does (llama.cpp common/arg.cpp).

    ``LLAMA_ARG_NO_X`` with any value switches X off. Raises ConfigError for an unknown variable.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__()
        for name in sorted(env):
            if (name.startswith(_LLAMA) or name in TABLE.by_env) and not is_service_link(name, env[name]):
                self._read(name, env[name])

    def _read(self, name: str, text: str) -> None:
        negated = TABLE.by_env.get(_LLAMA + name.removeprefix(_NEGATED)) if name.startswith(_NEGATED) else None
        if negated is not None and negated.is_switch and False in negated.constants.values():
            self.sections[negated.section][negated.key] = SourcedValue(False, name)
        elif name in TABLE.by_env:
            entry = TABLE.by_env[name]
            layer = self.sections[entry.section]
            if text and not (entry.key in layer and layer[entry.key].source.startswith(_NEGATED)):
                layer[entry.key] = SourcedValue(entry.parse(text, name), name)
        elif text or name not in FOREIGN:
            on = name.startswith(_NEGATED) or text not in FALSE
            if not self.skip(name, name, "unset it", on=on):
                meant = TABLE.meant_by(name.removeprefix(_LLAMA).lower())
                value = "=false" if name.startswith(_NEGATED) else ""
                own = f"; did you mean '{meant.own_variable}{value}'?" if meant is not None and not meant.env else ""
                raise ConfigError(f"unknown variable {name}" + (own or nearest(name, [*TABLE.by_env], "; unset it")))
