"""Trained weights: the shipped models, and SmolLM2."""
