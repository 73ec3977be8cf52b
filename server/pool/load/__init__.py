"""A model on its way into memory and out of it: its files, its load, its progress, what frees it."""
