"""The contents of model files, and all checks before the library opens them."""
