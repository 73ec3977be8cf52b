"""Tool calls as Llama 3.1 to 3.3 write them: the whole message is the call, at times with a tag in front::

    {"name": "get_weather", "parameters": {"city": "Paris"}}
    <|python_tag|>{"name": "get_weather", "parameters": {"city": "Paris"}}; {"name": ...}

Built-in tools (``<|python_tag|>brave_search.call(query="...")``) stay content.
"""

from server.chat.calls import CallFormat

FORMAT = CallFormat(open="<|python_tag|>", bare=True, separator=";", arguments="parameters")


def speaks(source: str) -> bool:
    """Whether a template asks for calls in this form."""
    asks = "<|python_tag|>" in source or 'in the format {"name": function name' in source
    return asks and '"parameters": ' in source
