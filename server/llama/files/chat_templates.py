"""Which of llama.cpp's built-in chat templates a Jinja2 source is taken for, as it does without Jinja."""

import ctypes

from server.llama.library import C

_CHAT = (  # distinguishes all templates, except those that render every chat alike
    ("system", " s\n"),
    ("user", " a\n"),
    ("assistant", " b\n"),
    ("user", " c\n"),
    ("system", "d"),
    ("assistant_tool_call", "e"),
    ("tool", "f"),
)
_SIZE = 4096  # bytes; no template makes more of that chat


def built_in_template(source: str) -> str:
    """Return the name of the built-in template that renders chats as llama.cpp does for `source`, "" if there is none.

    The library detects templates by signs in the source (src/llama-chat.cpp, llm_chat_detect_template) and does not
    report which it found, so outputs are compared. An empty source is ChatML, as for a model without a template.
    """
    written = _written(source or "chatml")
    if written is None:
        return ""
    return next((name for name in _names() if _written(name) == written), "")


def _names() -> list[str]:
    n = C.llama_chat_builtin_templates(None, 0)
    found = (ctypes.c_char_p * n)()
    C.llama_chat_builtin_templates(found, n)
    return sorted((name or b"").decode() for name in found)


def _written(source: str) -> bytes | None:
    chat = (C.llama_chat_message * len(_CHAT))()
    for message, (role, content) in zip(chat, _CHAT, strict=True):
        message.role, message.content = role.encode(), content.encode()
    text = ctypes.create_string_buffer(_SIZE)
    n = C.llama_chat_apply_template(source.encode().replace(b"\0", b""), chat, len(_CHAT), True, text, _SIZE)
    return None if n < 0 else text.raw[: min(n, _SIZE)]
