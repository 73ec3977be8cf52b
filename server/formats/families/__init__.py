"""One file for each format, or for those that differ by their markup alone, in folders by how a call's arguments are
written.

``json_objects``: one JSON object holds name and arguments. ``named_json``: the name in markup, then JSON.
``parameters``: markup around each argument. ``notations``: Python, or bare keys in braces.
"""
