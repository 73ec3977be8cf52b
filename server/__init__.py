"""Llamapool: a drop-in for llama-server, in Python over llama-cpp-python."""

__version__ = "0.1.0"
