"""Fitting models into memory: what a model takes (`measure`), what is free (`memory`), what is chosen (`choose`)."""
