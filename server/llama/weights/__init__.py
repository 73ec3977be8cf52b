"""Loaded weights: a model's, its draft model's, LoRA adapters, control vectors; where their tensors lie."""
