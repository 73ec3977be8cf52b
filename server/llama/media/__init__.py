"""Projectors: pictures and sounds to embeddings, by libmtmd (llama.cpp tools/mtmd)."""
