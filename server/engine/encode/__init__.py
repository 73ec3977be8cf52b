"""Embeddings of media: computed beside the steps, once for all who want them (`encoder`), and kept (`cache`)."""
