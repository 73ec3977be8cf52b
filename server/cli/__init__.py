"""The command `llamapool`."""

import gc
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit status. `argv` is the process's when None."""
    gc.disable()  # imports make no garbage; looking for it took a tenth of their time
    try:
        from server.cli.command_line import main as run
    finally:
        gc.enable()
    return run(argv)
