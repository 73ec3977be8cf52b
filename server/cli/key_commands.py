"""``llamapool keys``: creates API keys and lists the entries of a keys file."""

import sys
from collections.abc import Sequence
from pathlib import Path

from server.cli.connection import CommandParser
from server.transport.endpoints import SCOPES
from server.transport.keys import add_entry, hash_of, new_key, read_keys

USAGE = """llamapool keys add FILE NAME [--scopes A,B] [--models A,B] [--mcp A,B] [--requests-per-minute N]
                              [--tokens-per-minute N] [--tokens-per-day N] [--tokens-per-month N]
                              [--max-concurrent-requests N] [--priority N] [--expires YYYY-MM-DD]
llamapool keys list FILE

`add` prints a new key once and writes only its hash to FILE, the server's --keys-file. The server reloads the file
when it changes. `list` prints the entries. To revoke a key, delete its entry."""


def _parser() -> CommandParser:
    parser = CommandParser(prog="llamapool keys", usage=USAGE, add_help=False)
    commands = parser.add_subparsers(dest="command", required=True, prog=parser.prog)
    add = commands.add_parser("add", add_help=False)
    add.add_argument("file", type=Path)
    add.add_argument("name")
    add.add_argument("--scopes", type=lambda text: text.split(","), help=",".join(SCOPES))
    for flag in ("--models", "--mcp"):
        add.add_argument(flag, type=lambda text: text.split(","))
    for flag in (
        *("--requests-per-minute", "--tokens-per-minute", "--tokens-per-day", "--tokens-per-month"),
        *("--max-concurrent-requests", "--priority"),
    ):
        add.add_argument(flag, type=int)
    add.add_argument("--expires")
    commands.add_parser("list", add_help=False).add_argument("file", type=Path)
    return parser


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def main(argv: Sequence[str]) -> int:
    """Create an API key, or list a keys file. Raises ConfigError."""
    if not argv or {"-h", "--help"}.intersection(argv):
        print(USAGE)
        return 0
    options = vars(_parser().parse_args(argv))
    if options.pop("command") == "list":
        for entry in read_keys(options["file"]):
            facts = entry.model_dump(mode="json", exclude={"name", "hash"}, exclude_defaults=True)
            facts = {"scopes": list(entry.scopes), **facts}
            print(f"{entry.name}: {', '.join(f'{name} {_text(value)}' for name, value in facts.items())}")
        return 0
    key, file = new_key(), options.pop("file")
    fields = {name: value for name, value in options.items() if value is not None}
    add_entry(file, {"name": fields.pop("name"), "hash": hash_of(key), **fields})
    print(key)
    print(f"its hash is in {file}; the key is shown this once", file=sys.stderr)
    return 0
