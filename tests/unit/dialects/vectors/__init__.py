"""Embeddings and rerank."""
