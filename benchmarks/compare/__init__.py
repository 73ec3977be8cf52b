"""Llamapool against llama-server: `python -m benchmarks.compare`, what is measured together, and what is aimed at."""
