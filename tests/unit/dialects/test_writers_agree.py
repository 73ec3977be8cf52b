"""Whatever a model says, every wire format says the same of it, whole and streamed."""

import json
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from server.dialects.chat.parse import parse_chat
from server.dialects.chat.write import ChatWriter
from server.dialects.messages.parse import parse_messages
from server.dialects.messages.write import MessageWriter
from server.dialects.ollama.write import OllamaWriter, Reply
from server.dialects.responses.parse import parse_response
from server.dialects.responses.write import ResponseWriter
from server.engine.request import Event
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import HEADER, Turns, finished, started, text

HI = {"messages": [{"role": "user", "content": "Hi"}]}
CHAT, MESSAGE, RESPONSE = parse_chat(HI), parse_messages(HI), parse_response({"input": "Hi"})
WORDS = st.text('abé \n"\\{', min_size=1, max_size=4).filter(lambda word: bool(word.strip()))
ARGUMENTS = st.dictionaries(st.sampled_from("ab"), WORDS | st.integers() | st.none(), max_size=2)
Said = tuple[str, str, list[tuple[str, str, Any]]]
"""Texts, thoughts, and calls with id, name and arguments."""


@st.composite
def turns(draw: st.DrawFn) -> list[list[Piece]]:
    """What a parser makes of each text of the engine."""
    pieces: list[Piece] = []
    n_calls = 0
    for kind in draw(st.lists(st.sampled_from(("text", "thought", "call")), max_size=6)):
        if kind == "call":
            pieces.append(ToolCallBegin(n_calls, f"c{n_calls}", draw(st.sampled_from("fg"))))
            written = json.dumps(draw(ARGUMENTS))
            cut = draw(st.integers(0, len(written)))
            pieces += [ToolCallArguments(n_calls, part) for part in (written[:cut], written[cut:]) if part]
            n_calls += 1
        else:
            pieces.append((ContentText if kind == "text" else Reasoning)(draw(WORDS)))
    found: list[list[Piece]] = [[]]
    for piece in pieces:
        if draw(st.booleans()):
            found.append([])
        found[-1].append(piece)
    return found


def of_chat(message: dict[str, Any]) -> Said:
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]
    return message.get("content") or "", message.get("reasoning_content", ""), calls


def chat_stream(raw: list[bytes]) -> Said:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for event in raw[:-1]:
        for choice in orjson.loads(event.removeprefix(b"data: "))["choices"]:
            delta = choice["delta"]
            for key in ("content", "reasoning_content"):
                message[key] += delta.get(key) or ""
            for call in delta.get("tool_calls", ()):
                if "id" in call:
                    message["tool_calls"].append(call)
                else:
                    message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return of_chat(message)


def of_message(body: dict[str, Any]) -> Said:
    blocks = body["content"]
    texts = "".join(block["text"] for block in blocks if block["type"] == "text")
    thoughts = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    return texts, thoughts, [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]


def message_stream(raw: list[bytes]) -> Said:
    blocks: list[dict[str, Any]] = []
    for event in raw:
        body = orjson.loads(event.partition(b"data: ")[2])
        if body["type"] == "content_block_start":
            blocks.append({**body["content_block"], "written": ""})
        elif body["type"] == "content_block_delta":
            assert body["index"] == len(blocks) - 1
            blocks[-1]["written"] += next(value for key, value in body["delta"].items() if key != "type")
    for block in blocks:
        key = {"text": "text", "thinking": "thinking", "tool_use": "input"}[block["type"]]
        block[key] = json.loads(block["written"] or "{}") if key == "input" else block["written"]
    return of_message({"content": blocks})


def of_response(body: dict[str, Any]) -> Said:
    items = body["output"]
    texts, thoughts = (
        "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])
        for kind in ("message", "reasoning")
    )
    calls = [(i["call_id"], i["name"], json.loads(i["arguments"])) for i in items if i["type"] == "function_call"]
    return texts, thoughts, calls


def response_stream(raw: list[bytes]) -> Said:
    texts: dict[str, str] = {"response.output_text.delta": "", "response.reasoning_text.delta": ""}
    arguments: dict[str, str] = {}
    for event in raw:
        body = orjson.loads(event.partition(b"data: ")[2])
        if body["type"] in texts:
            texts[body["type"]] += body["delta"]
        elif body["type"] == "response.function_call_arguments.delta":
            arguments[body["item_id"]] = arguments.get(body["item_id"], "") + body["delta"]
    whole = of_response(orjson.loads(raw[-1].partition(b"data: ")[2])["response"])
    assert [json.loads(each) for each in arguments.values()] == [given for _, _, given in whole[2]]
    return *texts.values(), whole[2]  # type: ignore[return-value]


def of_ollama(lines: list[dict[str, Any]]) -> Said:
    messages = [line["message"] for line in lines]
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    texts, thoughts = ("".join(message.get(key, "") for message in messages) for key in ("content", "thinking"))
    return texts, thoughts, [("", call["name"], call["arguments"]) for call in calls]


def fed(writer: Any, events: list[Event]) -> list[bytes]:
    return [chunk for event in events for chunk in writer.feed(0, event)]


def added(writer: Any, events: list[Event]) -> None:
    writer.streams = False
    for event in events:
        writer.feed(0, event)


@given(turns())
def test_every_format_says_the_same(pieces: list[list[Piece]]) -> None:
    events: list[Event] = [started(), *(text("x") for _ in pieces[:-1]), finished()]
    words, fields = Reply("demo", chat=True), {"id": "r"}

    def script() -> Turns:
        return Turns(*pieces)

    chat, streamed = ChatWriter(CHAT, HEADER, script), ChatWriter(CHAT, HEADER, script)
    added(chat, events)
    wanted = of_chat(chat.body()["choices"][0]["message"])
    assert wanted[0] == "".join(piece.text for turn in pieces for piece in turn if isinstance(piece, ContentText))
    assert chat_stream([*fed(streamed, events), *streamed.finish()]) == wanted

    message = MessageWriter(MESSAGE, HEADER, script)
    added(message, events)
    assert of_message(orjson.loads(orjson.dumps(message.body()))) == wanted
    assert message_stream(fed(MessageWriter(MESSAGE, HEADER, script), events)) == wanted

    response, response_streamed = (ResponseWriter(RESPONSE, fields, script) for _ in range(2))
    added(response, events)
    assert of_response(response.body()) == wanted
    assert response_stream([*fed(response_streamed, events), *response_streamed.finish()]) == wanted

    unnamed = (*wanted[:2], [("", name, arguments) for _, name, arguments in wanted[2]])
    whole = OllamaWriter(words, script, began=0.0, loaded=0.0)
    added(whole, events)
    assert of_ollama([orjson.loads(orjson.dumps(whole.body()))]) == unnamed
    lines = fed(OllamaWriter(words, script, began=0.0, loaded=0.0), events)
    assert of_ollama([orjson.loads(line) for line in lines]) == unnamed
