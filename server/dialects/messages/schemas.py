"""The fields of Anthropic's bodies that `messages`, `blocks` and `tools` read by hand, for `server.dialects.warnings`.

Fields that clients return from an earlier reply (``citations`` of a text, ``caller``) are known and have no effect.
"""

from server.dialects.warnings import ByType, Fields

_SOURCE = Fields("type media_type data url file_id")
_TEXT = Fields("type text citations")
_IMAGE = Fields("type", source=_SOURCE)
_SHOWN = {
    "text": _TEXT,
    "image": _IMAGE,
    "document": Fields(
        "type title context citations", source=_SOURCE | Fields("", content=ByType({"text": _TEXT, "image": _IMAGE}))
    ),
    "search_result": Fields("type source title citations", content=ByType({"text": _TEXT})),
    "tool_reference": Fields("type tool_name"),
}
_CALL = Fields("type id name input caller server_name toolset_name")
BLOCK = ByType(
    {
        **_SHOWN,
        **dict.fromkeys(("tool_use", "server_tool_use", "mcp_tool_use"), _CALL),
        "tool_result": Fields("type tool_use_id is_error toolset_name", content=ByType(_SHOWN)),
        "thinking": Fields("type thinking signature"),
        "redacted_thinking": Fields("type data"),
        "mcp_tool_listing": Fields("type mcp_server_name tools"),
    }
)
MESSAGE = Fields("role output_config", content=BLOCK)
_TOOL = Fields("type name description input_schema strict defer_loading eager_input_streaming")
TOOL = ByType({"": _TOOL, "custom": _TOOL})  # for other types, the API defines the fields
