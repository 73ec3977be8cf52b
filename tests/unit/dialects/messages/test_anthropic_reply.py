"""The same events as a whole message and as a stream: what one says, the other says too."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from server.dialects.common import Header
from server.dialects.messages.messages import read_conversation
from server.dialects.messages.tools import read_tools
from server.dialects.messages.write import MessageWriter
from server.engine.request import Event, FinishReason
from server.formats.arguments import object_text
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import finished, started, text

HEADER = Header("demo", "msg_1", 1700000000)
USAGE = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "input_tokens": 3, "output_tokens": 3}


class Script:
    """Stands for a parser: the n-th text means the n-th list of pieces, the end the last one."""

    def __init__(self, *pieces: Sequence[Piece]) -> None:
        self._pieces = list(pieces)

    def feed(self, _text: str) -> list[Piece]:
        return list(self._pieces.pop(0))

    def finish(self, *, cut: bool = False) -> list[Piece]:
        return list(self._pieces.pop(0)) if self._pieces else []


def run(reason: FinishReason = FinishReason.EOS, n_texts: int = 1, word: str = "") -> list[Event]:
    end = finished(reason=reason, n_cached=2, stopping_word=word)
    return [started(n_cached=2), *[text("x")] * n_texts, end]


def whole(script: Callable[[], Script], events: Sequence[Event], **options: Any) -> Any:
    reply = MessageWriter(HEADER, script, **options)
    for event in events:
        reply.feed(0, event)
    return orjson.loads(orjson.dumps(reply.body()))


def streamed(script: Callable[[], Script], events: Sequence[Event], **options: Any) -> list[Any]:
    stream = MessageWriter(HEADER, script, **options)
    raw = [chunk for event in events for chunk in stream.feed(0, event)] + stream.finish()
    found = []
    for chunk in raw:
        name, data = chunk.removesuffix(b"\n\n").split(b"\n")
        body = orjson.loads(data.removeprefix(b"data: "))
        assert name == b"event: " + body["type"].encode()
        found.append(body)
    return found


def gathered(events: Sequence[Any]) -> Any:
    """The message that a client puts together; checks that every block is opened, written and closed in its turn."""
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        *("message_start", "message_delta", "message_stop")
    ]
    message, is_open, arguments = events[0]["message"], False, ""
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert not is_open
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            is_open, arguments = True, ""
            continue
        assert is_open
        assert event["index"] == len(message["content"]) - 1
        block = message["content"][-1]
        if event["type"] == "content_block_stop":
            is_open = False
            if arguments:
                block["input"] = orjson.loads(arguments)
            continue
        kind = event["delta"].pop("type")
        ((key, value),) = event["delta"].items()
        assert kind == {"partial_json": "input_json_delta"}.get(key, f"{key}_delta")
        if key == "partial_json":
            arguments += value
        else:
            block[key] += value
    assert not is_open
    message |= events[-2]["delta"]
    message["usage"] |= events[-2]["usage"]
    return message


CALLS = (ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, '{"a": '), ToolCallArguments(0, "1}"))
THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": ""}


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": "b', "", '{"a" 1}', "[1", "null"])
@pytest.mark.parametrize(
    "before", [[], [ContentText("So.")], [Reasoning("Hm.")], [Reasoning("Hm."), ContentText("So.")]]
)
def test_whatever_a_model_writes_can_be_sent_back(before: list[Piece], arguments: str, show: bool) -> None:
    pieces = [*before, ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, arguments)]
    content = whole(lambda: Script(pieces), run(FinishReason.LIMIT), show_reasoning=show)["content"]
    warnings: list[str] = []
    [message] = read_conversation(
        None, [{"role": "assistant", "content": content}], warnings, read_tools(None, None, warnings)
    )
    assert warnings == []
    assert message.reasoning == "".join(piece.text for piece in before if isinstance(piece, Reasoning) and show)
    said = "".join(piece.text for piece in before if isinstance(piece, ContentText))
    assert message.text.startswith(said)
    assert message.calls or message.text.endswith(arguments)  # what is no call stands in the text


@pytest.mark.parametrize(
    ("reason", "word", "pieces", "expected"),
    [
        (FinishReason.EOS, "", [ContentText("a")], ("end_turn", None)),
        (FinishReason.EOS, "", CALLS, ("tool_use", None)),
        (FinishReason.LIMIT, "", [ContentText("a")], ("max_tokens", None)),
        (FinishReason.LIMIT, "", CALLS, ("max_tokens", None)),
        (FinishReason.STOP, "END", [ContentText("a")], ("stop_sequence", "END")),
        (FinishReason.STOP, "END", CALLS, ("stop_sequence", "END")),
    ],
)
def test_the_reason_of_the_end_is_anthropics(
    reason: FinishReason, word: str, pieces: Sequence[Piece], expected: tuple[str, str | None]
) -> None:
    events = run(reason, word=word)
    message = whole(lambda: Script(pieces), events)
    assert (message["stop_reason"], message["stop_sequence"]) == expected
    assert gathered(streamed(lambda: Script(pieces), events)) == message


def test_what_the_parser_held_back_comes_before_the_end() -> None:
    events = run()
    assert whole(lambda: Script([], [ContentText("<tool")]), events)["content"] == [{"type": "text", "text": "<tool"}]
    kinds = [event["type"] for event in streamed(lambda: Script([], [ContentText("<tool")]), events)]
    assert kinds[1:4] == ["content_block_start", "content_block_delta", "content_block_stop"]


def test_a_stream_begins_with_the_prompts_counts_and_ends_with_the_outputs() -> None:
    first, *_, last, _ = streamed(lambda: Script([ContentText("a")]), run())
    assert first["message"]["usage"] == {**USAGE, "output_tokens": 0}
    assert (first["message"]["stop_reason"], first["message"]["content"]) == (None, [])
    assert last["usage"] == USAGE


def test_a_stream_that_ends_before_any_text_is_whole_too() -> None:
    events = streamed(Script, [finished(reason=FinishReason.LIMIT, n_predicted=0)])
    assert [event["type"] for event in events] == ["message_start", "message_delta", "message_stop"]


def test_thoughts_that_are_not_to_be_shown_leave_an_empty_block() -> None:
    events = run()
    message = whole(lambda: Script([Reasoning("Hm."), ContentText("a")]), events, show_reasoning=False)
    assert message["content"] == [{**THOUGHT, "thinking": ""}, {"type": "text", "text": "a"}]
    assert (
        gathered(streamed(lambda: Script([Reasoning("Hm."), ContentText("a")]), events, show_reasoning=False))
        == message
    )


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("", b"{}"),
        (" \n", b"{}"),
        ('{"a": 1}', b'{"a": 1}'),
        ('{"n": 123456789012345678901234567890}', b'{"n": 123456789012345678901234567890}'),
        ('{"city": "Paris", "cou', b'{"city":"Paris"}'),
        ('{"a": [1, {"b": 2', b'{"a":[1,{"b":2}]}'),
        ('{"n": 123456789012345678901234567890, ', b'{"n":123456789012345678901234567890}'),
        ('{"n": 1e400, ', b'{"n":null}'),
        ('{"a" 1}', b'{"arguments":"{\\"a\\" 1}"}'),
        ("[1]", b'{"arguments":[1]}'),
        ("[1", b'{"arguments":[1]}'),
        ("null", b"{}"),
        ('{"a": "\\ud800"}', b'{"a": "","arguments":"{\\"a\\": \\"\\\\ud800\\"}"}'),
        ('{"a": [1, "x" 2]} ', b'{"a": [1, "x"],"arguments":"{\\"a\\": [1, \\"x\\" 2]} "}'),
        ('{"a": "b"} and', b'{"a": "b","arguments":"{\\"a\\": \\"b\\"} and"}'),
        ('{"a": 1e400, "b": NaN}', b'{"a": null, "b": null}'),
        ('{"a": 01}', b'{"arguments":"{\\"a\\": 01}"}'),
        ('{"a": {]', b'{"a": {},"arguments":"{\\"a\\": {]"}'),
        ("[" * 500 + "]" * 500, b'{"arguments":"%b"}' % (b"[" * 500 + b"]" * 500)),
        ('{"a": NaN}', b'{"a": null}'),
        ("[" * 5000, b'{"arguments":"%b"}' % (b"[" * 5000)),
    ],
)
def test_arguments_are_read_as_they_were_written_or_up_to_where_they_were_cut_off(written: str, read: bytes) -> None:
    assert object_text(written, whole=True).encode() == read


@pytest.mark.parametrize("written", ["[1, 2]", "5", '"a"', "a city", '{"a" 1}', "{'a': 1}", "{a: 1}"])
def test_arguments_that_are_no_object_are_one_member_in_a_stream_and_in_one_piece(written: str) -> None:
    def script() -> Script:
        return Script([ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, written)])

    message = whole(script, run())
    assert gathered(streamed(script, run())) == message
    (block,) = message["content"]
    assert (block["type"], list(block["input"])) == ("tool_use", ["arguments"])
