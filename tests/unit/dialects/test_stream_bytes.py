"""Streamed events are equal to llama-server's, byte for byte: lines that llama.cpp 0c1e570 sent."""

from dataclasses import replace

import pytest

from server.dialects import common
from server.dialects.chat.parse import parse_chat
from server.dialects.chat.write import ChatWriter
from server.dialects.common import Header
from server.dialects.completions.parse import parse_completion
from server.dialects.completions.write import CompletionWriter, Echo
from server.dialects.dialect import Context, Writer
from server.dialects.native.parse import parse_native
from server.engine.request import Event, Finished, FinishReason, Started, Text, Timings
from tests.unit.dialects.builders import ScriptedParser, make_model

HEADER = Header("tinyllama-2", "chatcmpl-1qDNKEQAl3xboFthE6LEmEmGmaJclpoA", 1795220700)
ID = b'"id":"chatcmpl-1qDNKEQAl3xboFthE6LEmEmGmaJclpoA"'
MODEL = b'"model":"tinyllama-2","system_fingerprint":"b1-0c1e570"'
CHAT = b'"created":1795220700,' + ID + b"," + MODEL + b',"object":"chat.completion.chunk"'
COMPLETION = b'"created":1795220700,' + MODEL + b',"object":"text_completion"'
CHAT_TIMINGS = (
    b'"timings":{"cache_n":40,"prompt_n":1,"prompt_ms":1.019,"prompt_per_token_ms":1.019,'
    b'"prompt_per_second":981.3542688910698,"predicted_n":2,"predicted_ms":0.786,"predicted_per_token_ms":0.786,'
    b'"predicted_per_second":1272.264631043257}'
)
COMPLETION_TIMINGS = (
    b'"timings":{"cache_n":2,"prompt_n":1,"prompt_ms":1.019,"prompt_per_token_ms":1.019,'
    b'"prompt_per_second":981.3542688910698,"predicted_n":2,"predicted_ms":0.456,"predicted_per_token_ms":0.456,'
    b'"predicted_per_second":2192.9824561403507}'
)


@pytest.fixture(autouse=True)
def fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "FINGERPRINT", "b1-0c1e570")


def lines(writer: Writer, *texts: tuple[str, int], end: Finished) -> list[bytes]:
    events: list[Event] = [Started(0, end.n_prompt, end.n_cached)]
    events += [Text(0, text, (token,), (), None) for text, token in texts]
    raw = b"".join([chunk for event in [*events, end] for chunk in writer.feed(0, event)] + writer.finish())
    return [line.removeprefix(b"data: ") for line in raw.split(b"\n\n")[:-1]]


@pytest.mark.parametrize("include_usage", [False, True])
def test_chat_chunks_have_llama_servers_bytes(include_usage: bool) -> None:
    body = {
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "stream_options": {"include_usage": include_usage},
    }
    end = Finished(0, FinishReason.LIMIT, "", 41, 40, 2, Timings(40, 1, 1.019, 2, 0.786), 0, 43)
    usage = b'"usage":{"completion_tokens":2,"prompt_tokens":41,"total_tokens":43,"prompt_tokens_details":'
    usage += b'{"cached_tokens":40}}'
    last = b'{"choices":[{"finish_reason":"length","index":0,"delta":{}}],' + CHAT
    assert lines(ChatWriter(parse_chat(body), HEADER, ScriptedParser), (" an", 1), (" A", 2), end=end) == [
        b'{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}],' + CHAT + b"}",
        b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" an"}}],' + CHAT + b"}",
        b'{"choices":[{"finish_reason":null,"index":0,"delta":{"content":" A"}}],' + CHAT + b"}",
        *(
            [last + b"}", b'{"choices":[],' + CHAT + b"," + usage + b"," + CHAT_TIMINGS + b"}"]
            if include_usage
            else [last + b"," + CHAT_TIMINGS + b"}"]
        ),
        b"[DONE]",
    ]


def test_completion_chunks_have_llama_servers_bytes() -> None:
    end = Finished(0, FinishReason.LIMIT, "", 3, 2, 2, Timings(2, 1, 1.019, 2, 0.456), 0, 5)
    usage = b'"usage":{"completion_tokens":2,"prompt_tokens":3,"total_tokens":5,"prompt_tokens_details":'
    usage += b'{"cached_tokens":2}}'
    writer = CompletionWriter(parse_completion({"prompt": "x"}), HEADER, [Echo("", ())])
    assert lines(writer, ("Test", 405), ("Y", 484), end=end) == [
        *(
            b'{"choices":[{"text":"%b","index":0,"logprobs":null,"finish_reason":null}],%b,%b}' % (text, COMPLETION, ID)
            for text in (b"Test", b"Y")
        ),
        b'{"choices":[{"text":"","index":0,"logprobs":null,"finish_reason":"length"}],'
        + b",".join((COMPLETION, ID, usage, COMPLETION_TIMINGS))  # in llama-server, the id follows the usage
        + b"}",
        b"[DONE]",
    ]


def test_native_chunks_have_llama_servers_bytes() -> None:
    model = make_model()
    model.spec = replace(model.spec, id="tinyllama-2")
    writer = parse_native({"prompt": [1, 2, 3], "stream": True}).generation(Context(model)).writer
    end = Finished(0, FinishReason.LIMIT, "", 3, 2, 2, Timings(2, 1, 1.019, 2, 0.456), 1, 5)
    *texts, last = lines(writer, ("Test", 405), ("Y", 484), end=end)
    assert texts == [
        b'{"index":0,"content":"Test","tokens":[405],"stop":false,"id_slot":-1,"tokens_predicted":1,"tokens_evaluated":3}',
        b'{"index":0,"content":"Y","tokens":[484],"stop":false,"id_slot":-1,"tokens_predicted":2,"tokens_evaluated":3}',
    ]
    assert last.startswith(
        b'{"index":0,"content":"","tokens":[],"id_slot":1,"stop":true,"model":"tinyllama-2","tokens_predicted":2,'
        b'"tokens_evaluated":3,"generation_settings":{"seed":'
    )
    assert last.endswith(COMPLETION_TIMINGS + b"}")
