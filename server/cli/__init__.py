"""The command `llamapool`."""

import gc
import sys
from collections.abc import Sequence

from server.transport.early_signals import handle_early_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. `argv` None = the process's arguments."""
    arguments = sys.argv[1:] if argv is None else argv
    if arguments and arguments[0] == "health":  # runs every few seconds, so it skips the imports of other commands
        from server.cli.health import main as health

        return health(arguments[1:])
    if not arguments or arguments[0] == "serve" or arguments[0].startswith("-"):
        handle_early_signals()
    gc.disable()  # imports create no garbage, and collections would take a tenth of their time
    try:
        from server.cli.command_line import main as run
    finally:
        gc.enable()
    return run(argv)
