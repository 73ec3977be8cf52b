"""Tool calls as Mistral Nemo and its relatives write them::

    [TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "a1b2c3d4e"}]

Newer ones (``[TOOL_CALLS]name[ARGS]{...}``) are another form; theirs stay content. Ids have nine letters and digits:
the template refuses others.
"""

from server.chat.calls import CallFormat

FORMAT = CallFormat(open="[TOOL_CALLS]", listed=True, id_length=9)


def speaks(source: str) -> bool:
    """Whether a template writes calls so."""
    return FORMAT.open in source and "[ARGS]" not in source
