"""Llamapool: a drop-in for llama-server, in Python over llama-cpp-python."""

from llamapool import __version__

__all__ = ["__version__"]
