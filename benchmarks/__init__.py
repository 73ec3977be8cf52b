"""Benchmarks of Llamapool against llama-server: see README.md here."""
