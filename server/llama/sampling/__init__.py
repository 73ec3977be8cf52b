"""Sampler chains of the library: of one sequence, of several in parallel, and in the compute graph."""
