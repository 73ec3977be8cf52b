"""Families whose calls have markup around each argument; strings stand without quotes."""
