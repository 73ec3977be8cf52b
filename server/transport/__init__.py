"""HTTP plumbing shared by all routes: request bodies, errors, event streams, keys, CORS, the access log.

`access` authenticates and authorizes (keys, scopes, limits, cross-origin checks), `bodies` reads and limits bodies,
`streams` writes replies.
"""
