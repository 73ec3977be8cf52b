"""JSON Schemas that people use, and the official suite: what compiles, what it admits, and what it costs."""
