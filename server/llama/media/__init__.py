"""Projectors: images and audio to embeddings, by libmtmd (llama.cpp tools/mtmd)."""
