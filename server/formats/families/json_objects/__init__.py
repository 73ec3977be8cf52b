"""Families whose calls are JSON objects that hold the name and the arguments, in tags, lists or rows."""
