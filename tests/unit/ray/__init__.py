"""Parts of `llamapool.ray`, without Ray."""
