"""llama-server's named templates: one Jinja2 file each, in the folder ``built_in_sources``.

Their output is that of llama.cpp's src/llama-chat.cpp (llm_chat_apply_template). In addition ``chatml`` has tools, in
the format of Hermes; it is the template of models without one.
"""

import difflib
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "built_in_sources"
CHATML = "chatml"
_FORMATS = {
    # The call formats of the models. The templates themselves render neither tools nor calls.
    "chatglm4": "glm4",
    "command-r": "command-r-plus",
    "deepseek3": "deepseek",
    "exaone-moe": "hermes",
    "exaone4": "hermes",
    "gigachat": "gigachat",
    "gpt-oss": "harmony",
    "granite": "granite3",
    "granite-4.0": "hermes",
    "granite-4.1": "hermes",
    "hunyuan-dense": "hunyuan-a13b",
    "hunyuan-moe": "hunyuan-a13b",
    "kimi-k2": "kimi-k2",
    "llama3": "llama3",
    "llama4": "pythonic",
    "mistral-v3": "mistral",
    "mistral-v3-tekken": "mistral",
    "mistral-v7": "mistral",
    "mistral-v7-tekken": "mistral",
    "pangu-embedded": "pangu",
    "seed_oss": "qwen3-coder",
    "solar-open": "solar",
}


@cache
def names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))


@cache
def source_of(name: str) -> str:
    """Return the Jinja2 source of the template with that name, one of `names`."""
    return (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")


def format_of(name: str) -> str:
    """Return the call format of the models with that template; auto if it is unknown."""
    return _FORMATS.get(name, "auto")


def is_name(text: str) -> bool:
    """Return whether the text is probably a name and not Jinja2 source, which has tags."""
    return bool(text) and "{" not in text


def complaint(text: str) -> str:
    """Return the error for a text that is neither a template's name nor shows messages, with the nearest name."""
    near = difflib.get_close_matches(text.lower(), names(), n=1, cutoff=0.0)
    return f"{text[:80]!r} is the prompt of every chat; no built-in template has that name (nearest: {near[0]})"
