from typing import Any

import orjson
import pytest

from server.chat.conversation import Message, TextPart, Tools, template_messages
from server.dialects.messages.parse import MessageTools, read_conversation
from server.errors import InvalidRequest
from server.media.source import Media, MediaUrl, StoredFile

Block = dict[str, Any]
HI: Block = {"role": "user", "content": "Hi"}


def read(messages: object, system: object = None) -> tuple[list[Message], list[str]]:
    """The conversation, and what is left out."""
    warnings: list[str] = []
    return read_conversation(system, messages, warnings, MessageTools()), warnings


def shown(system: object, messages: object) -> list[dict[str, Any]]:
    found, warnings = read(messages, system)
    assert warnings == []
    return template_messages(found)


def text(value: str) -> Block:
    return {"type": "text", "text": value}


def user(*blocks: object) -> Block:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: object) -> Block:
    return {"role": "assistant", "content": list(blocks)}


def use(call_id: str = "c1", **more: object) -> Block:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": {"at": "sky"}, **more}


def result(content: object = "blue", call_id: str = "c1", **more: object) -> Block:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def document(source: object, **more: object) -> Block:
    return {"type": "document", "source": source, **more}


def image(media_type: str = "image/png") -> Block:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": "iVBORw0KGgo="}}


def test_reasoning_is_put_apart_and_another_servers_is_left_out_with_a_warning() -> None:
    thoughts = [{"type": "thinking", "thinking": "Hm. ", "signature": ""}, {"type": "thinking", "thinking": "Yes."}]
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    messages, [warning] = read([HI, assistant(*thoughts, redacted, use())])
    [_, message] = template_messages(messages)
    assert "redacted_thinking" in warning
    assert message["reasoning_content"] == "Hm. Yes."
    assert message["content"] == ""


@pytest.mark.parametrize("depth", [100, 400])
def test_arguments_may_be_nested_more_deeply_than_orjson_writes(depth: int) -> None:
    text = '{"a":["é",' * (depth // 2) + "null" + "]}" * (depth // 2)
    told = shown(None, [HI, assistant(use(input=orjson.loads(text)))])
    assert told[1]["tool_calls"][0]["function"]["arguments"] == text


def test_arguments_that_are_nested_too_deeply_are_refused() -> None:
    deep = orjson.loads('{"a":[' * 510 + "]}" * 510)
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        shown(None, [HI, assistant(use(input=deep))])


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"type": "text", "media_type": "text/plain", "data": "Once."}, "Once."),
        ({"type": "content", "content": "Once."}, "Once."),
        ({"type": "content", "content": [text("Once."), text("Twice.")]}, "Once.\nTwice."),
    ],
)
def test_a_document_of_text_is_framed_by_its_title(source: Block, said: str) -> None:
    titled = document(source, title='A "<tale>"\n', context="by N.", citations={"enabled": True})
    [message], warnings = read([user(titled)])
    start = '<document name="A &quot;&lt;tale&gt;&quot;" type="text/plain">\nContext: by N.\n'
    assert message.content == (TextPart(f"{start}{said}\n</document>", plain=True),)
    assert warnings == ["messages.0.content.0.citations is ignored: replies cite no documents"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"type": "file", "file_id": "file-1"}, StoredFile("file-1")),
        (
            {"type": "url", "url": "https://a.example/b/c%20d.pdf?x=1"},
            MediaUrl("https://a.example/b/c%20d.pdf?x=1", "c d.pdf"),
        ),
        ({"type": "file"}, None),
        ({"type": "sketch"}, None),
    ],
)
def test_a_document_and_an_image_may_be_elsewhere(source: Block, expected: object) -> None:
    (found,) = read([user(document(source))])[0][0].parts
    (picture,) = read([user({"type": "image", "source": source})])[0][0].parts
    assert isinstance(found, Media)
    assert isinstance(picture, Media)
    assert (found.kind, found.source) == ("document", expected)
    assert picture.source == (MediaUrl(expected.url) if isinstance(expected, MediaUrl) else expected)


def test_a_search_result_is_text() -> None:
    given = {"type": "search_result", "source": "https://a.example", "title": "A", "content": [text("b"), text("c")]}
    [message] = shown(None, [user(given)])
    assert message["content"] == [text("A\nhttps://a.example\nb\nc")]


def test_media_are_named_so_that_claude_code_finds_the_block_and_leaves_it_out() -> None:
    pdf = document({"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="})
    [message], warnings = read([user(text("Look:"), image(), pdf)])
    assert message.content[1:] == (
        Media("image", "image/png", "messages.0.content.1.image", MediaUrl("data:image/png;base64,iVBORw0KGgo=")),
        Media("document", at="messages.0.content.2.document", source=MediaUrl("data:application/pdf;base64,JVBERi0=")),
    )
    assert warnings == []


def loaded(*messages: Block, tools: object = None, choice: object = None) -> tuple[list[str], Tools]:
    """The texts of a conversation, and the tools that may be called behind it."""
    warnings: list[str] = []
    given = MessageTools(tools)
    found = read_conversation(None, list(messages), warnings, given)
    offered = given.finish(choice, None, warnings)
    assert warnings == []
    return [message.text for message in found], offered


FETCH: Block = {"name": "fetch", "description": "Gets it.", "input_schema": {"type": "object"}, "defer_loading": True}
LOOK: Block = {"name": "look", "input_schema": {"type": "object"}}
FOUND = {"type": "tool_reference", "tool_name": "fetch"}
DEFINITION = '<function>{"description":"Gets it.","name":"fetch","parameters":{"type":"object"}}</function>\n'


def test_where_no_other_tool_is_told_of_a_deferred_one_says_how_to_call() -> None:
    _, tools = loaded(HI, user(result([FOUND])), tools=[FETCH])
    assert [(tool.name, tool.deferred) for tool in tools.tools] == [("fetch", False)]


def test_tools_come_and_go_in_the_middle_of_a_conversation() -> None:
    by_value = {name: value for name, value in FETCH.items() if name != "defer_loading"}
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": by_value}}
    named = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "fetch"}}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "fetch"}}
    for addition, tools in ((added, [LOOK]), (named, [LOOK, FETCH])):
        texts, found = loaded(HI, {"role": "system", "content": [addition]}, user(gone), tools=tools)
        assert texts[1] == DEFINITION
        assert texts[2] == "[The tool fetch can't be called any more.]\n"
        assert [tool.name for tool in found.tools] == ["look", "fetch"]


@pytest.mark.parametrize(
    "tool",
    [
        None,
        {"type": "mcp_toolset_reference", "server_name": "x"},
        {"type": "tool_definition", "definition": {"type": "web_search_20250305", "name": "web_search"}},
    ],
)
def test_what_cannot_be_added_is_skipped(tool: object) -> None:
    found, warnings = read([HI, {"role": "system", "content": [{"type": "tool_addition", "tool": tool}]}])
    assert [message.text for message in found] == ["Hi"]
    assert "blocks of type 'tool_addition' are left out" in warnings


def test_a_definition_that_is_wrong_is_named() -> None:
    wrong = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "f"}}}
    with pytest.raises(InvalidRequest) as caught:
        read([{"role": "system", "content": [wrong]}])
    assert caught.value.param == "messages.0.content.0.tool.definition.input_schema"


def test_calls_that_anthropics_servers_carried_out_stand_as_calls_with_their_results() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "sky"}}
    hit = {"type": "web_search_result", "url": "https://a.example", "title": "Sky", "encrypted_content": "xyz"}
    found_it = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [hit]}
    mcp = {"type": "mcp_tool_use", "id": "m1", "name": "look", "server_name": "x", "input": {}}
    seen = {"type": "mcp_tool_result", "tool_use_id": "m1", "is_error": False, "content": [text("blue"), text("!")]}
    given = assistant(text("Let me search."), search, found_it, mcp, seen, text("It is blue."))
    messages, warnings = read([HI, given])
    assert warnings == []
    assert [message.role for message in messages] == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [call.name for message in messages for call in message.calls] == ["web_search", "x__look"]
    assert (messages[2].call_id, messages[2].name) == ("s1", "web_search")
    assert messages[2].text == '[{"type":"web_search_result","url":"https://a.example","title":"Sky"}]'
    assert (messages[4].text, messages[5].text) == ("blue!", "It is blue.")


@pytest.mark.parametrize(("content", "said"), [("All before.", ["All before.", "Hi"]), (None, ["Hi"])])
def test_a_summary_stands_for_the_turns_before_it(content: object, said: list[str]) -> None:
    found, _ = read([assistant({"type": "compaction", "content": content}), HI])
    assert [message.text for message in found] == said


def test_a_stamp_that_is_new_in_each_session_and_request_does_not_spoil_the_cached_prefix() -> None:
    stamp = "x-anthropic-billing-header: cc_version=2.1.197.{}; cc_entrypoint=sdk-cli; cch={};{}"
    rest = "You are a coder. cch=12345; cc_version=2.1.197.1c0;"
    found = shown([text(stamp.format("1c0", "a5145", "")), text(rest)], [HI])
    assert found == shown(stamp.format("8a5", "0b1c2", rest), [HI])
    assert found[0]["content"] == stamp.format("fff", "fffff", rest)
