"""Loading and freeing a model: its files, its load, its progress."""
