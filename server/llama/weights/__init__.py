"""Loaded weights of a model and its draft model, LoRA adapters, control vectors, and the placement of tensors."""
