"""The fields of chat bodies that are parsed by hand, for `server.dialects.warnings`.

Fields that clients return from an earlier reply (``annotations``, ``refusal``) are known and have no effect.
"""

from server.dialects.warnings import ByType, Fields

_FILE = Fields("file_data file_url filename file_id detail")
_ADDRESS = Fields("url data format")
CONTENT = ByType(
    {
        **dict.fromkeys(("text", "input_text", "output_text"), Fields("type text annotations logprobs")),
        "refusal": Fields("type refusal"),
        **dict.fromkeys(
            ("thinking", "reasoning", "redacted_thinking"), Fields("type thinking reasoning text data signature")
        ),
        "image_url": Fields("type", image_url=_ADDRESS),
        "input_image": Fields("type file_id", image_url=_ADDRESS),
        "input_audio": Fields("type", input_audio=_ADDRESS),
        "audio_url": Fields("type", audio_url=_ADDRESS),
        "input_video": Fields("type", input_video=_ADDRESS),
        "video_url": Fields("type", video_url=_ADDRESS),
        "file": Fields("type", file=_FILE),
        "input_file": Fields("type") | _FILE,
    }
)
_CALLED = Fields("name arguments")
_FUNCTION_CALL = Fields("type id index", function=_CALLED)
CALL = ByType(
    {"": _FUNCTION_CALL, "function": _FUNCTION_CALL, "custom": Fields("type id index", custom=Fields("name input"))}
)
MESSAGE = Fields(
    "role name tool_call_id refusal annotations audio thinking reasoning reasoning_details provider_specific_fields",
    content=CONTENT,
    reasoning_content=CONTENT,
    tool_calls=CALL,
)
FUNCTION = Fields("name description parameters strict")
FORMAT = Fields("type syntax definition", grammar=Fields("syntax definition"))
"""``format`` of a custom tool."""
_CUSTOM = Fields("name description", format=FORMAT)
TOOL = ByType({"function": Fields("type", function=FUNCTION), "custom": Fields("type", custom=_CUSTOM) | _CUSTOM})
_NAME = Fields("name")
_NAMED = Fields("type name namespace", function=_NAME, custom=_NAME, tool=_NAME)
_ALLOWED = Fields("mode", tools=_NAMED)
TOOL_CHOICE = _NAMED | Fields("disable_parallel_tool_use", allowed_tools=_ALLOWED) | _ALLOWED
"""``tool_choice`` in the forms of every dialect, since each dialect takes the others'."""
