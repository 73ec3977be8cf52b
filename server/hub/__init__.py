"""Models from a hub, found in the cache that Hugging Face's tools share, or downloaded into it. `hub.Hub` is the entry
point.

`reference` parses model names, `choice` selects a repository's files (pure), `cache` reads the cache, `remote` sends
requests to the hub, `download` fetches one file completely or not at all. User documentation: ``docs/models.md``.
"""
