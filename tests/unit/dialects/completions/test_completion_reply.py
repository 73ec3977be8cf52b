from server.dialects.completions.write import CompletionForm, CompletionWriter, Echo
from server.engine.request import FinishReason, Progress, TokenLogprob
from tests.unit.dialects.builders import HEADER, chunks, finished, logprob, started, text

TIMINGS = {
    *("cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second"),
    *("predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second"),
}


def test_a_reply_has_llama_servers_keys_in_its_order() -> None:
    reply = CompletionWriter(HEADER, [Echo()], CompletionForm(n=1))
    for event in (started(), text("a"), text("b", logprobs=[logprob(b"b")]), finished(reason=FinishReason.LIMIT)):
        reply.add(0, event)
    body = reply.body()
    assert list(body) == ["choices", "created", "model", "system_fingerprint", "object", "usage", "id", "timings"]
    assert (body["object"], body["model"], body["id"]) == ("text_completion", "demo", "chatcmpl-1")
    choice = body["choices"][0]
    assert list(choice) == ["text", "index", "logprobs", "finish_reason"]
    assert (choice["text"], choice["index"], choice["finish_reason"]) == ("ab", 0, "length")
    assert len(choice["logprobs"]["content"]) == 1
    assert set(body["timings"]) == TIMINGS


def test_choices_of_a_batch_are_numbered_through() -> None:
    reply = CompletionWriter(HEADER, [Echo("P"), Echo("Q")], CompletionForm(n=2))
    for prompt in (1, 0):
        for index in (1, 0):
            reply.add(prompt, text(f"{prompt}{index}", index))
            reply.add(prompt, finished(index))
    body = reply.body()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "P00"), (1, "P01"), (2, "Q10"), (3, "Q11")]
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["completion_tokens"] == 12
    assert body["usage"]["prompt_tokens"] == 10


def test_the_best_choices_of_each_prompt_are_shown_in_their_order() -> None:
    reply = CompletionWriter(HEADER, [Echo(), Echo()], CompletionForm(n=3, best=2, logprobs=False))
    for prompt, values in enumerate([(-0.5, -0.1, -2.0), (-1.0, -3.0, -0.2)]):
        for index, value in enumerate(values):
            name = f"{prompt}{index}"
            reply.add(prompt, text(name, index, logprobs=[logprob(b"x", value), logprob(b"y", value)]))
            reply.add(prompt, finished(index))
    body = reply.body()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "01"), (1, "00"), (2, "12"), (3, "10")]
    assert {c["logprobs"] for c in body["choices"]} == {None}
    assert body["usage"]["completion_tokens"] == 18


def test_the_end_token_is_no_entry_of_the_logprobs() -> None:
    end = text("", logprobs=[TokenLogprob(257, b"", -0.1, ends=True)])
    reply = CompletionWriter(HEADER, [Echo()], CompletionForm(n=1))
    for event in (text("a", logprobs=[logprob(b"a")]), end, finished()):
        reply.add(0, event)
    assert [t["token"] for t in reply.body()["choices"][0]["logprobs"]["content"]] == ["a"]
    assert CompletionWriter(HEADER, [Echo()], CompletionForm(n=1, include_usage=False)).feed(0, end) == []


def test_a_stream_ends_with_reason_usage_and_done() -> None:
    stream = CompletionWriter(HEADER, [Echo()], CompletionForm(n=1, include_usage=False))
    raw = [c for e in (started(), text("é"), text(""), finished()) for c in stream.feed(0, e)] + stream.finish()
    assert raw[-1] == b"data: [DONE]\n\n"
    first, last = chunks(raw)
    keys = ["choices", "created", "model", "system_fingerprint", "object", "id"]
    assert list(first) == keys
    assert first["choices"] == [{"text": "é", "index": 0, "logprobs": None, "finish_reason": None}]
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert set(last) == {*keys, "usage", "timings"}


def test_with_include_usage_there_is_one_chunk_of_its_own() -> None:
    stream = CompletionWriter(HEADER, [Echo(), Echo()], CompletionForm(n=1, include_usage=True))
    raw = [c for p in (0, 1) for e in (text("a"), finished()) for c in stream.feed(p, e)] + stream.finish()
    parsed = chunks(raw)
    assert [c["index"] for chunk in parsed for c in chunk["choices"]] == [0, 0, 1, 1]
    assert [chunk["choices"] for chunk in parsed if "usage" in chunk] == [[]]
    assert parsed[-1]["usage"]["completion_tokens"] == 6
    assert set(parsed[-1]["timings"]) == TIMINGS


def test_logprobs_timings_and_progress_ride_on_chunks() -> None:
    stream = CompletionWriter(HEADER, [Echo()], CompletionForm(n=1, include_usage=False))
    progress, token = chunks(
        [
            *stream.feed(0, Progress(0, 10, 2, 5, 1.0)),
            *stream.feed(0, text("a", logprobs=[logprob(b"a")], timed=True)),
        ]
    )
    assert progress["prompt_progress"]["processed"] == 5
    assert token["choices"][0]["logprobs"]["content"][0]["token"] == "a"
    assert token["timings"]["predicted_n"] == 1
