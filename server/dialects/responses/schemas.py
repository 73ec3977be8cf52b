"""The fields of Responses bodies that `input` and `tools` read by hand, for `server.dialects.warnings`.

Fields that clients return from an earlier reply (``id``, ``status``, ``annotations``) are known and have no effect.
"""

from server.dialects.chat.schemas import FORMAT
from server.dialects.warnings import ByType, Fields

_TEXT = Fields("type text annotations logprobs")
_MEDIA = Fields("type data url file_data format", image_url=Fields("url"), video_url=Fields("url data"))
_PART = ByType(
    {
        **dict.fromkeys(("input_text", "output_text", "text", "summary_text", "reasoning_text"), _TEXT),
        "refusal": Fields("type refusal"),
        "input_image": Fields("type file_id", image_url=Fields("url")),
        "input_file": Fields("type file_data file_url file_id filename detail"),
        "input_audio": _MEDIA | Fields("", input_audio=Fields("data url format")),
        "input_video": _MEDIA | Fields("", input_video=Fields("data url format")),
    }
)
_MESSAGE = Fields("type id role status phase", content=_PART)
_OUTPUT = Fields("type id call_id status name namespace caller", output=_PART)
_CALLABLE = {
    "function": Fields("type name description parameters strict defer_loading"),
    "custom": Fields("type name description defer_loading", format=FORMAT),
}
TOOL = ByType(
    {
        **_CALLABLE,
        "namespace": Fields("type name description", tools=ByType(_CALLABLE)),
        **dict.fromkeys(("local_shell", "apply_patch", "computer"), Fields("type allowed_callers")),
        "computer_use_preview": Fields("type display_width display_height environment"),
        "shell": Fields("type allowed_callers", environment=Fields("type skills")),
        "tool_search": Fields("type execution description parameters"),
    }
)
ITEM = ByType(
    {
        **dict.fromkeys(("", "message"), _MESSAGE),
        "function_call": Fields("type id call_id name namespace arguments status caller async"),
        "custom_tool_call": Fields("type id call_id name namespace input status caller async"),
        **dict.fromkeys(("function_call_output", "custom_tool_call_output"), _OUTPUT),
        "reasoning": Fields("type id status encrypted_content", content=_PART, summary=_PART),
        **dict.fromkeys(("compaction", "compaction_summary"), Fields("type id encrypted_content created_by")),
        "item_reference": Fields("type id"),
        "additional_tools": Fields("type id role", tools=TOOL),
        "tool_search_output": Fields("type id call_id execution status created_by", tools=TOOL),
    }
)
TEXT_FORMAT = Fields("type name description schema strict")
