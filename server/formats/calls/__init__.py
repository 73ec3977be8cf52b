"""Ways to write a call that several families share, read as they come: `json_calls` (over `json_text`), `python_calls`,
`typed` (parameters one by one) and `invokes` (elements).
"""
