"""Trained weights: the models that ship, and SmolLM2."""
