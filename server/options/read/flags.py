"""Reads a command line by llama-server's rules (llama.cpp common/arg.cpp, common_params_parse_ex).

A spelling is taken whole, never abbreviated; in ``--long`` flags ``_`` counts as ``-``; a flag's value is the
next word, whatever it looks like (``-np -1``). Beyond llama-server, ``--flag=value`` is understood.
Shorthands stand for several others: a model of its hub with settings for it (from ``--embd-gemma-default`` on).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from server.errors import ConfigError
from server.options.read.layers import SourcedValue, from_text
from server.options.table.option import OptionRow, Table, nearest
from server.options.unsupported import DEAD_FLAGS, FIXED_FLAGS, FLAGS, dead, refusal

_FIM = "--port 8012 -ub 1024 -b 1024 -c 0 --cache-reuse 256"
_OSS = "--port 8013 -ub 2048 -b 32768 -np 2 -c 262144 --temp 1 --top-p 1 --top-k 0 --min-p 0.01"
_HALF = "-hfd ggml-org/Qwen2.5-Coder-0.5B-Q8_0-GGUF"
_VISION = "--port 8014 -c 0"

SHORTHANDS = {
    "--embd-gemma-default": "-hf ggml-org/embeddinggemma-300M-qat-q4_0-GGUF -hff embeddinggemma-300M-qat-Q4_0.gguf "
    "--port 8011 -ub 2048 -b 2048 -np 32 -c 65536 --embedding",
    "--fim-qwen-1.5b-default": "-hf ggml-org/Qwen2.5-Coder-1.5B-Q8_0-GGUF -hff qwen2.5-coder-1.5b-q8_0.gguf " + _FIM,
    "--fim-qwen-3b-default": "-hf ggml-org/Qwen2.5-Coder-3B-Q8_0-GGUF -hff qwen2.5-coder-3b-q8_0.gguf " + _FIM,
    "--fim-qwen-7b-default": "-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf " + _FIM,
    "--fim-qwen-7b-spec": f"-hf ggml-org/Qwen2.5-Coder-7B-Q8_0-GGUF -hff qwen2.5-coder-7b-q8_0.gguf {_HALF} {_FIM}",
    "--fim-qwen-14b-spec": f"-hf ggml-org/Qwen2.5-Coder-14B-Q8_0-GGUF -hff qwen2.5-coder-14b-q8_0.gguf {_HALF} {_FIM}",
    "--fim-qwen-30b-default": "-hf ggml-org/Qwen3-Coder-30B-A3B-Instruct-Q8_0-GGUF "
    "-hff qwen3-coder-30b-a3b-instruct-q8_0.gguf " + _FIM,
    "--gpt-oss-20b-default": "-hf ggml-org/gpt-oss-20b-GGUF -hff gpt-oss-20b-mxfp4.gguf " + _OSS,
    "--gpt-oss-120b-default": "-hf ggml-org/gpt-oss-120b-GGUF " + _OSS,
    "--vision-gemma-4b-default": "-hf ggml-org/gemma-3-4b-it-qat-GGUF " + _VISION,
    "--vision-gemma-12b-default": "-hf ggml-org/gemma-3-12b-it-qat-GGUF " + _VISION,
    "--spec-default": "--spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48 "
    "--spec-ngram-mod-n-max 64",
}


def written_out(words: Sequence[str]) -> Iterator[str]:
    """`words` with what shorthands stand for in their place; what comes later counts, as everywhere."""
    for word in words:
        yield from SHORTHANDS[word].split() if word in SHORTHANDS else (word,)


CONFIG_FLAG = "--config"
COMPLETION_FLAG = "--completion-bash"
DEVICES_FLAG = "--list-devices"


@dataclass(slots=True)
class Flags:
    """What the command line says. ``model`` holds for every model; ``skipped`` is what has no effect, a line each."""

    server: dict[str, SourcedValue] = field(default_factory=dict)
    model: dict[str, SourcedValue] = field(default_factory=dict)
    config: str = ""
    skipped: list[str] = field(default_factory=list)


def read_flags(table: Table, argv: Sequence[str]) -> Flags:
    """Raises ConfigError with one line for an unknown flag or a missing value."""
    flags = Flags()
    words = list(written_out(argv))
    while words:
        flag, inline = _split(words.pop(0))
        if flag in FIXED_FLAGS:
            _check_fixed(flags, flag)
        elif flag in DEAD_FLAGS:
            _value(flag, inline, words)
            flags.skipped.append(dead(flag))
        elif flag == CONFIG_FLAG:
            flags.config = _value(flag, inline, words)
        elif flag in table.by_flag:
            _give(flags, table.by_flag[flag], flag, inline, words)
        else:
            raise ConfigError(_unknown(table, flag))
    return flags


def _split(word: str) -> tuple[str, str | None]:
    if not word.startswith("--"):
        return word, None
    name, equals, value = word.partition("=")
    return name.replace("_", "-"), value if equals else None


def _value(flag: str, inline: str | None, words: list[str], n_words: int = 1) -> str:
    """The next word, or several joined by a blank."""
    if inline is not None:
        return inline
    if len(words) < n_words:
        needed = "a value" if n_words == 1 else f"{n_words} values"
        raise ConfigError(f"{flag} needs {needed}; see --help")
    return " ".join(words.pop(0) for _ in range(n_words))


def _give(flags: Flags, entry: OptionRow, flag: str, inline: str | None, words: list[str]) -> None:
    target = flags.server if entry.section == "server" else flags.model
    if flag in entry.constants or entry.is_switch:
        if inline is not None:
            raise ConfigError(f"{flag} takes no value; write {flag} alone")
        value = entry.constants.get(flag, True)
    else:
        value = from_text(entry, _value(flag, inline, words, entry.option.n_words), flag)
        if entry.option.repeat and entry.key in target:
            value = [*target[entry.key].value, *value]
    for key in entry.option.replaces:  # the later of two flags that exclude each other counts
        target.pop(key, None)
    target[entry.key] = SourcedValue(value, flag)


def _check_fixed(flags: Flags, flag: str) -> None:
    fixed, value = FIXED_FLAGS[flag]
    if value is not fixed.value:
        flags.skipped.append(fixed.refuse(flag, "remove it"))


def _unknown(table: Table, flag: str) -> str:
    if flag in FLAGS:
        return refusal(flag, "remove it")
    known = [*table.by_flag, CONFIG_FLAG, "--help", "--version", "--cache-list", COMPLETION_FLAG, DEVICES_FLAG]
    otherwise = "; see --help"
    if flag.endswith(".gguf"):
        otherwise = f"; a model's file is named by -m {flag}"
    elif flag.endswith((".yaml", ".yml")):
        otherwise = f"; the configuration is named by {CONFIG_FLAG} {flag}"
    return f"unknown argument '{flag}'" + nearest(flag, known, otherwise)
