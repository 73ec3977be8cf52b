"""Families whose calls have markup around each argument, and strings without quotes."""
