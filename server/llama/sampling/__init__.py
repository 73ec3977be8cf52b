"""Sampler chains of the library, one or several at a time."""
