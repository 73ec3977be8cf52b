"""Ways to write a call that several families share, read as they come: JSON, Python, bare keys, elements."""
