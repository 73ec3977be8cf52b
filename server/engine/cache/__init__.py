"""Cached KV states: the cells of an instance, the RAM and disk tiers, the free cells, and the cache namespaces."""
