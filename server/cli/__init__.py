"""The command `llamapool`."""

import gc
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status. `argv` is the process's when None."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] == "health":  # runs every few seconds: it needs none of what other commands import
        from server.cli.health import main as health

        return health(words[1:])
    gc.disable()  # imports make no garbage; looking for it took a tenth of their time
    try:
        from server.cli.command_line import main as run
    finally:
        gc.enable()
    return run(argv)
