"""Families whose calls are written in a notation of their own: Python, or bare keys in braces."""
