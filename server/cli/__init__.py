"""The command `llamapool`: `command_line.main` is the door."""

from server.cli.command_line import main

__all__ = ["main"]
