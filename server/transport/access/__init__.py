"""Authentication and authorization. `auth` finds a request's key, `keys` and `key_file` hold the keys, `rates` their
limits, `endpoints` the scope of each path; `guard` and `cors` check requests of other sites' pages, `hosts`
classifies addresses.
"""
