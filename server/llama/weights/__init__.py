"""Loaded weights: a model's, its draft model's, LoRA adapters, control vectors, and the placement of tensors."""
