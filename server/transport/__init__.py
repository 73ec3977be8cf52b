"""HTTP plumbing shared by every route: bodies in, errors and event streams out, keys, CORS, the access log."""
