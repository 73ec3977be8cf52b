"""Families whose calls have the name in markup and the arguments as one JSON object."""
