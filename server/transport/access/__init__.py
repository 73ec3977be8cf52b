"""Who may ask for what. `auth` finds a request's key, `keys` and `key_file` are the keys, `rates` their limits,
`endpoints` the scope that each path needs; `guard` and `cors` are for web pages of others, `hosts` tells whose an
address is.
"""
