"""The same events as a whole message and as a stream: what one says, the other says too."""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from server.dialects.common import Header
from server.dialects.messages.parse import MessageTools, parse_messages, read_conversation
from server.dialects.messages.write import MessageWriter
from server.engine.request import Event, FinishReason
from server.formats.arguments import object_text
from server.formats.parsing.pieces import ContentText, Piece, Reasoning, ToolCallArguments, ToolCallBegin
from tests.unit.dialects.builders import Turns, finished, started, text

HEADER = Header("demo", "msg_1", 1700000000)
SHOWN, HIDDEN = {"type": "enabled"}, {"type": "enabled", "display": "omitted"}


def run(reason: FinishReason = FinishReason.EOS, n_texts: int = 1, word: str = "") -> list[Event]:
    end = finished(reason=reason, n_cached=2, stopping_word=word)
    return [started(n_cached=2), *[text("x")] * n_texts, end]


def whole(script: Callable[[], Turns], events: Sequence[Event], **fields: Any) -> Any:
    reply = MessageWriter(parse_messages({"messages": [], **fields}), HEADER, script)
    for event in events:
        reply.feed(0, event)
    return orjson.loads(orjson.dumps(reply.body()))


@pytest.mark.parametrize("show", [True, False])
@pytest.mark.parametrize("arguments", ['{"a": 1}', '{"a": "b', "", '{"a" 1}', "[1", "null"])
@pytest.mark.parametrize(
    "before", [[], [ContentText("So.")], [Reasoning("Hm.")], [Reasoning("Hm."), ContentText("So.")]]
)
def test_whatever_a_model_writes_can_be_sent_back(before: list[Piece], arguments: str, show: bool) -> None:
    pieces = [*before, ToolCallBegin(0, "c1", "f"), ToolCallArguments(0, arguments)]
    content = whole(lambda: Turns(pieces), run(FinishReason.LIMIT), thinking=SHOWN if show else HIDDEN)["content"]
    warnings: list[str] = []
    [message] = read_conversation(None, [{"role": "assistant", "content": content}], warnings, MessageTools())
    assert warnings == []
    assert message.reasoning == "".join(piece.text for piece in before if isinstance(piece, Reasoning) and show)
    said = "".join(piece.text for piece in before if isinstance(piece, ContentText))
    assert message.text.startswith(said)
    assert message.calls or message.text.endswith(arguments)  # what is no call stands in the text


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
        ('{"a": "\\ud800"}', b'{"arguments":"{\\"a\\": \\"\\\\ud800\\"}"}'),
        ('{"a": 01}', b'{"arguments":"{\\"a\\": 01}"}'),
        ('{"a": {]', b'{"arguments":"{\\"a\\": {]"}'),
        ("[" * 500 + "]" * 500, b'{"arguments":"%b"}' % (b"[" * 500 + b"]" * 500)),
        ('{"a": NaN}', b'{"a":null}'),
        ("[" * 5000, b'{"arguments":"%b"}' % (b"[" * 5000)),
    ],
)
def test_arguments_are_read_as_they_were_written_or_up_to_where_they_were_cut_off(written: str, read: bytes) -> None:
    assert object_text(written, whole=True).encode() == read
