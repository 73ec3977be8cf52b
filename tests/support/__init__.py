"""Shared by tests and benchmarks: server processes, fake runners, small GGUF files, and llama-server as a reference."""
