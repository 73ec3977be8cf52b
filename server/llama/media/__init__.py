"""Projectors, which compute embeddings of images and audio, through libmtmd (llama.cpp tools/mtmd)."""
