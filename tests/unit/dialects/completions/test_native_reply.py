import json
import math
from typing import Any

import orjson
import pytest

from server.dialects.native.write import Finals, NativeWriter, picked
from server.engine.request import Finished, FinishReason, Progress, Request, Timings, TokenLogprob
from tests.unit.dialects.builders import chunks, finished, logprob, started, text

SETTINGS = {"n_predict": 4, "post_sampling_probs": False, "speculative.types": "none"}
KEYS = [
    *("index", "content", "tokens", "id_slot", "stop", "model"),
    *("tokens_predicted", "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated"),
    *("stop_type", "stopping_word", "tokens_cached", "timings"),
]
PARTIAL = ["index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"]


def finals(n: int = 1, prompts: tuple[str, ...] = ("P",), fields: tuple[str, ...] = (), **settings: Any) -> Finals:
    return Finals("demo", n, prompts, {**SETTINGS, **settings}, fields)


def reply(*events: Any, return_tokens: bool = False, **of: Any) -> Any:
    writer = NativeWriter(finals(**of), [], return_tokens=return_tokens)
    for event in events:
        writer.add(0, event)
    return json.loads(orjson.dumps(writer.body()))


def stream(*events: Any, n_probs: int = 0, timings: bool = False, **of: Any) -> list[dict[str, Any]]:
    request = Request("r", [1, 2, 3], n_probs=n_probs, timings_per_token=timings)
    writer = NativeWriter(finals(**of), [request] * 2)
    raw = [chunk for event in events for chunk in writer.feed(0, event)]
    assert writer.finish() == []
    return chunks(raw)


def test_a_reply_has_llama_servers_keys_in_its_order() -> None:
    end = Finished(0, FinishReason.STOP, "!", 5, 2, 3, Timings(2, 3, 10.0, 3, 20.0), 6, 7, True, True, 9)
    body = reply(started(), text("a"), text("b"), end)
    assert list(body) == KEYS
    assert (body["content"], body["tokens"], body["stop"], body["model"]) == ("ab", [], True, "demo")
    assert (body["tokens_predicted"], body["tokens_evaluated"], body["tokens_cached"]) == (3, 5, 9)
    assert (body["id_slot"], body["has_new_line"], body["truncated"]) == (6, True, True)
    assert (body["stop_type"], body["stopping_word"], body["prompt"]) == ("word", "!", "P")
    assert body["timings"]["predicted_n"] == 3


def test_after_sampling_they_are_plain_and_none_is_zero() -> None:
    top = (logprob(b"b", 0.0, token=2), logprob(b"c", -math.inf, token=3))
    event = text("a", logprobs=[TokenLogprob(1, b"a", -math.inf, top)])
    for body in (
        reply(event, finished(), post_sampling_probs=True),
        stream(event, n_probs=2, post_sampling_probs=True)[0],
    ):
        assert body["completion_probabilities"] == [
            {
                "id": 1,
                "token": "a",
                "bytes": [97],
                "prob": 0.0,
                "top_probs": [{"id": 2, "token": "b", "bytes": [98], "prob": 1.0}],
            }
        ]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (("content", "generation_settings/n_predict"), {"content": "a", "generation_settings/n_predict": 4}),
        (("nope", "content/x", "generation_settings/nope", "", "/", "tokens/0"), {}),
        (("generation_settings/speculative.types",), {"generation_settings/speculative.types": "none"}),
        (("stop", "stop"), {"stop": True}),
    ],
)
def test_response_fields_pick_what_is_there(paths: tuple[str, ...], expected: dict[str, Any]) -> None:
    assert reply(text("a"), finished(), fields=paths) == expected
    assert stream(finished(), fields=("index",)) == [{"index": 0}]


def test_picked_is_in_the_order_of_the_paths() -> None:
    assert list(picked({"a": 1, "b": {"c": 2}}, ["b/c", "a"])) == ["b/c", "a"]


def test_a_stream_has_its_tokens_and_ends_with_the_whole_object() -> None:
    first, second, last = stream(started(), text("hé"), text("y"), finished())
    assert list(first) == PARTIAL
    assert (first["content"], first["tokens"], first["stop"], first["id_slot"]) == (
        "hé",
        list("hé".encode()),
        False,
        -1,
    )
    assert (first["tokens_predicted"], second["tokens_predicted"]) == (3, 4)
    assert first["tokens_evaluated"] == 3
    assert list(last) == KEYS
    assert (last["content"], last["tokens"], last["stop"]) == ("", [], True)


def test_timings_and_probabilities_ride_on_chunks_where_asked_for() -> None:
    event = text("a", logprobs=[logprob(b"a")], timed=True)
    (shown,) = stream(event, n_probs=1, timings=True)
    assert list(shown) == [*PARTIAL, "timings", "completion_probabilities"]
    assert "completion_probabilities" not in stream(event)[0]


def test_progress_has_no_tokens() -> None:
    progress = Progress(0, 10, 2, 5, 1.5)
    (shown,) = stream(progress)
    assert list(shown) == [*PARTIAL, "prompt_progress"]
    assert (shown["tokens"], shown["content"], shown["tokens_predicted"]) == ([], "", 0)
    assert shown["prompt_progress"] == {"total": 10, "cache": 2, "processed": 5, "time_ms": 1}
    assert "timings" in stream(progress, timings=True)[0]
