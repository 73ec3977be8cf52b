"""Reads a command line by llama-server's rules (llama.cpp common/arg.cpp, common_params_parse_ex).

A spelling is taken whole, never abbreviated; in ``--long`` flags ``_`` counts as ``-``; a flag's value is the
next word, whatever it looks like (``-np -1``). Beyond llama-server, ``--flag=value`` is understood.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from server.errors import ConfigError
from server.options.read.layers import Given, from_text
from server.options.read.shorthands import written_out
from server.options.table.option import OptionRow, Table, nearest
from server.options.unsupported import DEAD_FLAGS, FIXED_FLAGS, FLAGS, dead, refusal

CONFIG_FLAG = "--config"
COMPLETION_FLAG = "--completion-bash"
DEVICES_FLAG = "--list-devices"


@dataclass(slots=True)
class Flags:
    """What the command line says. ``model`` holds for every model; ``skipped`` is what has no effect, a line each."""

    server: dict[str, Given] = field(default_factory=dict)
    model: dict[str, Given] = field(default_factory=dict)
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
    target[entry.key] = Given(value, flag)


def _check_fixed(flags: Flags, flag: str) -> None:
    fixed, value = FIXED_FLAGS[flag]
    if value is not fixed.value:
        flags.skipped.append(fixed.refuse(flag, "remove it"))


def _unknown(table: Table, flag: str) -> str:
    if flag in FLAGS:
        return refusal(flag, "remove it")
    known = [*table.by_flag, CONFIG_FLAG, "--help", "--version", "--cache-list", COMPLETION_FLAG, DEVICES_FLAG]
    return f"unknown argument '{flag}'" + nearest(flag, known, "; see --help")
