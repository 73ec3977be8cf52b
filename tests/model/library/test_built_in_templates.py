"""Built-in templates render the same prompts as llama.cpp's code (src/llama-chat.cpp)."""

import ctypes
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import llama_cpp as C  # noqa: N812
import pytest

from server.errors import ModelFailed
from server.llama.files.description import built_in_template
from server.llama.loader import LlamaLoader
from server.pool.loading import chat_template
from server.pool.spec import ChatParams, MetadataOverride, ModelSpec
from server.templates.built_in import names, source_of
from server.templates.jinja import TemplateEnvironment
from tests.model.native_fixtures import load
from tests.support.ggufs import TinyModel, gguf_file

Chat = list[tuple[str, str]]

CHATS: dict[str, Chat] = {
    "one": [("user", "Hi.")],
    "system": [("system", "Be brief."), ("user", "Hi.")],
    "turns": [("user", "Hi."), ("assistant", "Hello!"), ("user", "How?"), ("assistant", "So."), ("user", "Bye.")],
    "system and turns": [("system", "Be brief."), ("user", "Hi."), ("assistant", "Hello!"), ("user", "How?")],
    "ends with the assistant": [("user", "Hi."), ("assistant", "Hello!")],
    "spaces": [("system", " \n s\t "), ("user", " \v u \f\r\n"), ("assistant", "\n a "), ("user", "\tb  ")],
    "other spaces": [("system", "\u00a0s\u2003"), ("user", "\u3000u\x85"), ("assistant", "\x1fa\u200b")],
    "two systems": [("system", "A"), ("system", "B"), ("user", "Hi."), ("system", "C"), ("user", "Bye.")],
    "two users": [("user", "Hi."), ("user", "You?"), ("assistant", "Yes."), ("assistant", "Here.")],
    "tool": [("user", "Hi."), ("assistant", "{}"), ("tool", " 18 C "), ("assistant", "Warm."), ("user", "Ok.")],
    "other roles": [("function", "f"), ("assistant_tool_call", "c"), ("Übung", "x"), ("x", "y"), ("user", "Hi.")],
    "markup": [("system", "<b>&'\"{{ 1 }}"), ("user", "<|im_end|>\n\n<s>[INST]</s>"), ("assistant", "{% raw %}")],
    "empty": [("system", ""), ("user", ""), ("assistant", ""), ("user", "")],
    "none": [],
    "several tongues": [("system", "Sé breve."), ("user", "你好 👋🏽"), ("assistant", "Привет!")],
}
OTHER_TOOL_RESULTS = {"chatml"}  # renders tool results in the Hermes format


def library_prompt(name: str, chat: Chat, *, generation: bool) -> str:
    encoded = [(role.encode(), content.encode()) for role, content in chat]
    messages = (C.llama_chat_message * len(chat))(*(C.llama_chat_message(role, content) for role, content in encoded))
    buffer = ctypes.create_string_buffer(1 << 16)
    n_bytes = C.llama_chat_apply_template(name.encode(), messages, len(chat), generation, buffer, len(buffer))
    assert 0 <= n_bytes <= len(buffer)
    return buffer.raw[:n_bytes].decode()


def test_names_are_those_of_the_library() -> None:
    n_names = C.llama_chat_builtin_templates((ctypes.c_char_p * 0)(), 0)
    expected = (ctypes.c_char_p * n_names)()
    C.llama_chat_builtin_templates(expected, n_names)
    assert names() == tuple(name.decode() for name in expected if name)


@pytest.mark.parametrize("name", names())
def test_a_built_in_template_renders_the_librarys_prompt(name: str) -> None:
    jinja = TemplateEnvironment(source_of(name))
    template = jinja.from_string(source_of(name))
    for case, chat in CHATS.items():
        if case == "tool" and name in OTHER_TOOL_RESULTS:
            continue
        messages = [{"role": role, "content": content} for role, content in chat]
        for generation in (True, False):
            arguments = {"messages": messages, "add_generation_prompt": generation}
            assert jinja.render(template, arguments) == library_prompt(name, chat, generation=generation), case


@pytest.mark.parametrize("name", names())
def test_without_jinja_a_name_selects_its_built_in_template(name: str) -> None:
    detected = built_in_template(name)
    assert detected == name or source_of(detected) == source_of(name)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("", "chatml"),
        ("{% for m in messages %}<start_of_turn>{{ m.role }}{% endfor %}", "gemma"),
        ("<|start_header_id|>{{ messages }}<|end_header_id|>", "llama3"),
        ("<|im_start|><|im_sep|>\0", "phi4"),
        ("an unknown template", ""),
    ],
)
def test_without_jinja_a_template_is_detected_by_its_markers(source: str, name: str) -> None:
    assert built_in_template(source) == name


def test_without_jinja_a_model_uses_the_detected_template_or_fails(gguf_folder: Path) -> None:
    path = gguf_file(gguf_folder, TinyModel(chat_template="{{ raise_exception('never rendered') }}<|im_start|>"))
    spec = ModelSpec("tiny", path, chat=ChatParams(jinja=False))
    with closing(LlamaLoader().load(spec, lambda _: True)) as weights:
        assert chat_template(weights.info, spec).source == source_of("chatml")
        unknown = replace(spec, chat=ChatParams(jinja=False, template="{{ messages }}"))
        with pytest.raises(ModelFailed, match=r"none that llama.cpp has built in; leave out --no-jinja"):
            chat_template(replace(weights.info, built_in_template=""), unknown)


def test_a_model_without_a_template_uses_the_one_that_the_library_derives(gguf_folder: Path) -> None:
    path = gguf_file(gguf_folder, TinyModel(n_layer=40, chat_template=None))
    tekken = (MetadataOverride("tokenizer.ggml.pre", "tekken"),)
    with closing(load(path, metadata_overrides=tekken)) as weights:
        assert weights.info.built_in_template == "mistral-v7-tekken"
