"""Models of a hub, found in or downloaded to the cache that Hugging Face's tools share. `hub.Hub` is the entry point.

`names` parses model names and selects a repository's files (pure), `cache` reads the cache, `process` starts
download processes, `child` runs in them. User documentation: ``docs/models.md``.
"""
