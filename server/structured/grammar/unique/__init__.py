"""``uniqueItems``, which no grammar can say.

`items` is the constraint; it follows where in the output it is (`cursor`), and what the schema wants there (`places`).
"""
