"""Tests of `llamapool.ray` without Ray."""
