"""For any output of a model, all dialects write the same text, reasoning and calls, whole and streamed."""

import json
from collections.abc import Callable
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
from tests.api.inference.dialects import DIALECTS, Answer
from tests.unit.dialects.builders import HEADER, SequenceParser, finished, started, text

HI = {"messages": [{"role": "user", "content": "Hi"}], "stream_options": {"include_usage": True}}
CHAT, MESSAGE, RESPONSE = parse_chat(HI), parse_messages(HI), parse_response({"input": "Hi"})
FIELDS = {"id": "r", "created_at": 1, "model": "demo", "parallel_tool_calls": True, "tools": [], "tool_choice": "auto"}
TEXTS = st.text('abé \n\u2028"\\{', min_size=1, max_size=4).filter(lambda text: bool(text.strip()))
ARGUMENTS = st.dictionaries(st.sampled_from("ab"), TEXTS | st.integers() | st.none(), max_size=2)
WRITERS: dict[str, Callable[[Callable[[], SequenceParser]], Any]] = {
    "chat": lambda script: ChatWriter(CHAT, HEADER, script),
    "messages": lambda script: MessageWriter(MESSAGE, HEADER, script),
    "responses": lambda script: ResponseWriter(RESPONSE, FIELDS, script),
    "ollama-chat": lambda script: OllamaWriter(Reply("demo", chat=True), script, started_at=0.0, loaded_at=0.0),
}


@st.composite
def parsed_pieces(draw: st.DrawFn) -> list[list[Piece]]:
    """Return the pieces that the parser returns for each text of the engine."""
    pieces: list[Piece] = []
    n_calls = 0
    for kind in draw(st.lists(st.sampled_from(("text", "reasoning", "call")), max_size=6)):
        if kind == "call":
            pieces.append(ToolCallBegin(n_calls, f"c{n_calls}", draw(st.sampled_from("fg"))))
            written = json.dumps(draw(ARGUMENTS), indent=draw(st.sampled_from((None, 1))), ensure_ascii=False)
            at = draw(st.integers(0, len(written)))
            pieces += [ToolCallArguments(n_calls, part) for part in (written[:at], written[at:]) if part]
            n_calls += 1
        else:
            pieces.append((ContentText if kind == "text" else Reasoning)(draw(TEXTS)))
    groups: list[list[Piece]] = [[]]
    for piece in pieces:
        if draw(st.booleans()):
            groups.append([])
        groups[-1].append(piece)
    return groups


def output(answer: Answer) -> tuple[str, str, list[tuple[str, dict[str, Any]]]]:
    return answer.text or "", answer.reasoning, [(name, arguments) for _, name, arguments in answer.calls]


@given(parsed_pieces())
def test_all_dialects_write_the_same_output(pieces: list[list[Piece]]) -> None:
    events: list[Event] = [started(), *(text("x") for _ in pieces[:-1]), finished()]
    answers: list[Answer] = []
    for dialect in (each for each in DIALECTS if each.name in WRITERS):
        whole, stream = (WRITERS[dialect.name](lambda: SequenceParser(*pieces)) for _ in range(2))
        whole.streams = False
        for event in events:
            whole.feed(0, event)
        answers.append(dialect.whole(orjson.loads(orjson.dumps(whole.body()))))
        raw = [chunk for event in events for chunk in stream.feed(0, event)]
        answers.append(dialect.streamed(b"".join([*raw, *stream.finish()]).decode()))
    assert len(answers) == 2 * len(WRITERS)
    for answer in answers:
        assert output(answer) == output(answers[0])
    assert answers[0].text == "".join(p.text for group in pieces for p in group if isinstance(p, ContentText))
    ids = [[call[0] for call in answer.calls if call[0]] for answer in answers[:6]]
    assert all(each == ids[0] for each in ids)
