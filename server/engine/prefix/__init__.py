"""Prefix search: where a prompt's prefix is cached. `find` is the entry point. Pure.

================  ======================================================================================
``find``          chooses a slot and the source of the prefix, and records why the rest is computed
``hashes``        block hashes of prefixes, comparison of two texts, and an index over cached entries
``blocks``        which prompt blocks are held, as change events for routers
================  ======================================================================================
"""
