"""``uniqueItems``, which a grammar can't express. `items` is the constraint; `cursor` tracks the position in the
output, and `places` the schemas that apply there.
"""
