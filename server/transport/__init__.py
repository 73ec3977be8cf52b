"""HTTP plumbing shared by every route: bodies in, errors and event streams out, keys, CORS, the access log.

`access` is who may ask for what (keys, scopes, limits, pages of other sites), `bodies` what is read, and how much of
it, `streams` what is written for as long as its client is there, or longer.
"""
