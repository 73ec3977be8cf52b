"""Writes the table out: --help, docs/configuration.md and the YAML's JSON Schema."""

import argparse
import json
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from server.options.flags import COMPLETION_FLAG, CONFIG_FLAG, DEVICES_FLAG, FOREIGN_OPTIONS, SHORTHANDS
from server.options.model import ModelDefaults, ModelSettings
from server.options.option import Option, descriptions
from server.options.server import ServerSettings
from server.options.sources import CONFIG_VARIABLE
from server.options.table import TABLE

USAGE = """llamapool [serve] [flags]
       llamapool check-config FILE [flags]
       llamapool fit [MODEL] [flags]
       llamapool pull OWNER/NAME[:QUANT] | list | rm OWNER/NAME[:QUANT]
       llamapool doctor [flags]
       llamapool chat [--url URL] [--model NAME] [MESSAGE]
       llamapool launch codex|claude|opencode|aider [--url URL] [--model NAME] [-- ARGUMENTS]
       llamapool keys --help
       llamapool health [FILE]
       llamapool bench --help"""
_NOT_HERE = """
## llama-server's options that are fixed here

Accepted in the form that says what Llamapool does anyway. The other is refused, or skipped with a warning.

"""


def help_text() -> str:
    """Return what --help prints: the flags by group."""
    parser = argparse.ArgumentParser(
        prog="llamapool",
        usage=USAGE,
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=38, width=110),
        epilog="Environment variables, YAML keys and precedence: docs/configuration.md",
    )
    general = parser.add_argument_group("General")
    general.add_argument("-h", "--help", "--usage", action="help", help="print this help and exit")
    general.add_argument("--version", action="store_true", help="print the version and exit")
    general.add_argument(
        "-cl", "--cache-list", action="store_true", help="list the models in the download cache and exit"
    )
    general.add_argument(COMPLETION_FLAG, action="store_true", help="print a bash completion script and exit")
    general.add_argument(DEVICES_FLAG, action="store_true", help="list the devices for offloading and exit")
    general.add_argument(CONFIG_FLAG, metavar="FILE", help=f"YAML configuration file ({CONFIG_VARIABLE})")
    for name, entries in _groups().items():
        group = parser.add_argument_group(name)
        for entry in entries:
            _add_help(group, entry)
    return parser.format_help()


def _add_help(group: "argparse._ArgumentGroup", entry: Option) -> None:
    shown = f"{entry.description} (default: {_shown(entry)})".strip().replace("%", "%%")
    if entry.is_switch:
        group.add_argument(*entry.flags, *entry.constants, action="store_true", help=shown)
        return
    group.add_argument(
        *entry.plain_flags, metavar=entry.metavar or ("MODE" if isinstance(entry.default, str) else "N"), help=shown
    )
    for flag, (metavar, _) in entry.forms.items():
        group.add_argument(flag, metavar=metavar, help=f"as {entry.flags[0]}")
    if entry.constants:
        group.add_argument(*entry.constants, action="store_true", help=f"{entry.key} at its highest")


def _shown(entry: Option) -> str:
    value = entry.default
    if value is None:
        return "auto" if entry.is_switch else "none"
    if value is True or value is False:
        return str(value).lower()
    if isinstance(value, tuple):
        texts = map(str, value)
        return ", ".join(json.dumps(text) if text.strip() != text or "," in text else text for text in texts) or "none"
    return str(value) if value not in ("", {}) else "empty"


def _groups() -> dict[str, list[Option]]:
    """Return the options by heading, those of models first."""
    groups: dict[str, list[Option]] = {"Model": []}
    for entry in sorted(TABLE, key=lambda entry: entry.section != "model"):
        groups.setdefault(entry.group, []).append(entry)
    return groups


def completion(commands: Iterable[str]) -> str:
    """Return the bash completion: ``source <(llamapool --completion-bash)``. A flag's value completes to files."""
    valued = sorted(flag for entry in TABLE if not entry.is_switch for flag in entry.flags)
    words = " ".join(sorted({*commands, *TABLE.by_flag, *SHORTHANDS, "--help", "--version"}))
    return f"""\
_llamapool() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}}
    case $before in
        {"|".join(valued)}) COMPREPLY=($(compgen -f -- "$word")) ;;
        *) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;
    esac
}}
complete -o filenames -F _llamapool llamapool
"""


def markdown() -> str:
    """Return the generated part of docs/configuration.md."""
    parts = []
    for name, entries in _groups().items():
        home = "`server`" if entries[0].section == "server" else "`models.<id>`"
        if entries[0].section == "model" and name != "Model":
            home += " or `defaults`"
        parts.append(f"\n## {name}\n\nIn {home}.\n\n| name | flags | variable | default | |\n|---|---|---|---|---|\n")
        parts += [_row(entry) for entry in entries]
    parts.append(_NOT_HERE)
    for option in FOREIGN_OPTIONS:
        if option.met:
            skipped = "" if option.is_refused else f" Skipped: {_flags(option.names)}."
            parts.append(f"- {_flags(option.met)}: {option.reason}.{skipped}\n")
        elif not option.is_refused:
            parts.append(f"- Skipped: {_flags(option.names)}: {option.reason}.\n")
    parts.append("\n## Shorthand flags\n\nAs in llama-server; on the command line only.\n\n")
    parts += [f"- `{flag}`: `{words}`\n" for flag, words in SHORTHANDS.items()]
    parts.append("\n## llama-server's options that are not supported\n\nRefused with one line that says why.\n\n")
    refused = [(_flags(each.names), each.reason) for each in FOREIGN_OPTIONS if each.is_refused and not each.met]
    parts += [f"- {flags}: {reason}.\n" for flags, reason in refused if flags]
    return "".join(parts)


def _flags(names: str) -> str:
    """Return the flags among `names`, separated by spaces, as Markdown."""
    return ", ".join(f"`{name}`" for name in names.split() if name.startswith("-"))


def _row(entry: Option) -> str:
    flags = " ".join(f"`{flag}`" for flag in (*entry.flags, *entry.constants))
    env = " ".join(f"`{name}`" for name in (entry.env, *entry.env_forms) if name)
    default = f"`{_shown(entry)}`"
    cells = (f"`{entry.key}`", flags, env, default, " ".join(entry.description.split()))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "\\n") for cell in cells) + " |\n"


_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "min_length": "minItems",
}


def json_schema(document: type[BaseModel]) -> str:
    """config/schema.json, for editors: `# yaml-language-server: $schema=schema.json`."""
    plain = _plain_schema(document.model_json_schema())
    for model in (ServerSettings, ModelDefaults, ModelSettings):
        shown = plain["$defs"][model.__name__]["properties"]
        for key, text in descriptions(model).items():
            shown[key] = dict(sorted({**shown[key], "description": text}.items()))
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **plain,
        "title": "Llamapool configuration",
        "description": "The YAML file that --config and LLAMAPOOL_CONFIG name; docs/configuration.md explains it.",
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _plain_schema(node: Any) -> Any:
    """Limits under JSON Schema's names (pydantic leaves its own where a validator stands before), no titles."""
    if isinstance(node, list):
        return [_plain_schema(item) for item in node]
    if not isinstance(node, dict):
        return node
    titled = isinstance(node.get("title"), str)
    kept = {key: value for key, value in node.items() if not (titled and key == "title")}
    return {_KEYWORDS.get(key, key): value if key == "default" else _plain_schema(value) for key, value in kept.items()}
