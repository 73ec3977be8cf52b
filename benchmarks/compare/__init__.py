"""Llamapool compared with llama-server: `python -m benchmarks.compare`, its units, scenarios and goals."""
