"""Models of a hub: found in the cache that all of Hugging Face's tools share, or downloaded into it.

``hub.Hub`` is the door. ``reference`` says how a model is named, ``choice`` which of a repository's files are meant
(pure), ``cache`` where they lie, ``remote`` asks the hub (the only module that speaks HTTP), ``download`` fetches one
file so that it is there whole or not at all. ``docs/models.md`` is for users.
"""
