"""Tests of constrained decoding with real JSON Schemas and the official suite: coverage, correctness and cost."""
