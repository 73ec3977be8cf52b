"""Families whose calls say the name in markup, and the arguments as one JSON object."""
