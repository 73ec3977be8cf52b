"""Prompts as they are: OpenAI's completions with log probabilities, llama-server's own, infill, media, tokens."""

import itertools
import json
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from server.dialects.common import Header, Json
from server.dialects.completions.parse import parse_completion
from server.dialects.completions.prompt import prompt_text, read_prompts
from server.dialects.completions.write import CompletionWriter, Echo, TokenLists, echo
from server.dialects.dialect import Context
from server.dialects.native.fim import fitting_extra, fitting_gap
from server.dialects.native.parse import parse_native
from server.dialects.native.tokens import read_tokenize
from server.dialects.native.write import KEY, NativeWriter
from server.dialects.vectors import read_embeddings
from server.engine.media import MediaPrompt, MediaSpan
from server.engine.request import (
    RANDOM_SEED,
    Finished,
    FinishReason,
    PromptLogprobs,
    Request,
    Started,
    Text,
    Timings,
    TokenLogprob,
)
from server.errors import ContextExceeded, InvalidRequest
from server.media.bitmap import Bitmap
from server.media.source import LoadedMedia, MediaUrl
from server.pool.model import LoadedModel
from tests.support.fakes import FakeEmbeddingRunner, FakeReader, FakeVocab
from tests.unit.dialects.builders import finished, make_model


def token(piece: bytes, logprob: float, *top: TokenLogprob, ends: bool = False) -> TokenLogprob:
    return TokenLogprob(len(piece), piece, logprob, top, ends)


def test_offsets_count_the_characters_before_a_tokens_first_byte() -> None:
    lists = TokenLists(3)
    found = lists.take([token(b" a", -1.0), token("é".encode()[:1], -1.0)])
    assert found["text_offset"] == [3, 5]
    assert found["tokens"] == [" a", "bytes:\\xc3"]
    found = lists.take([token("é".encode()[1:], -1.0), token(b"b", -1.0), token(b"", -2.0, ends=True)])
    assert found["text_offset"] == [5, 6, 7]
    assert found["tokens"] == ["bytes:\\xa9", "b", ""]


def test_alternatives_are_named_by_their_text_and_hold_the_token_itself() -> None:
    best, same = token(b"x", -0.1), token(b"x", -3.0)
    found = TokenLists().take([token(b"y", -2.0, best, same)])
    assert found["top_logprobs"] == [{"x": -0.1, "y": -2.0}]
    assert max(found["top_logprobs"][0].values()) == -0.1
    assert TokenLists().take([token(b"x", -0.1, best)])["top_logprobs"] == [{"x": -0.1}]


def test_media_have_no_log_probabilities_and_stand_where_their_marker_is() -> None:
    spans = (MediaSpan(2, 2, 2, True, "a"), MediaSpan(4, 1, 1, True, "b"))
    prompt = MediaPrompt([FakeVocab.bos, ord("x"), -5, -6, -7, ord(" "), ord("y")], spans)
    lists = echo(FakeVocab(), "x<m><m> y", prompt, "<m>")
    lists.score([token(b"x", -1.0), None, None, None, token(b" ", -2.0), token(b"y", -3.0)])
    assert lists.complete
    found = lists.lists
    assert found["tokens"][1:] == ["x", "", "", "", " ", "y"]
    assert found["text_offset"] == [0, 0, 1, 4, 4, 7, 8]
    assert found["token_logprobs"] == [None, -1.0, None, None, None, -2.0, -3.0]
    assert found["top_logprobs"][2:5] == [None] * 3


def test_a_stream_holds_back_choices_that_start_before_the_prompt_is_scored() -> None:
    echoed = Echo("abc", (b"a", b"b", b"c"))
    asked = parse_completion({"prompt": "x", "n": 2, "logprobs": 1})
    stream = CompletionWriter(asked, Header("m"), [echoed])
    own = token(b"d", -0.5)
    end = Finished(1, FinishReason.LIMIT, "", 3, 0, 1, Timings(), 0, 1)
    assert stream.feed(0, PromptLogprobs(0, (token(b"b", -1.0),))) == []
    assert stream.feed(0, Started(1, 3, 2)) == []
    assert stream.feed(0, Text(1, "d", (100,), (own,))) == []
    assert stream.feed(0, end) == []
    chunks = [json.loads(chunk[6:])["choices"][0] for chunk in stream.feed(0, PromptLogprobs(0, (token(b"c", -2.0),)))]
    assert [chunk["index"] for chunk in chunks] == [1, 1, 1]
    assert [chunk["text"] for chunk in chunks] == ["abc", "d", ""]
    assert chunks[0]["logprobs"]["token_logprobs"] == [None, -1.0, -2.0]
    assert chunks[1]["logprobs"]["text_offset"] == [3]
    assert chunks[1]["logprobs"]["content"][0]["logprob"] == -0.5
    assert chunks[2]["finish_reason"] == "length"
    (first,) = stream.feed(0, Started(0, 3, 0))
    assert json.loads(first[6:])["choices"][0]["logprobs"]["tokens"] == ["a", "b", "c"]


def test_a_batch_takes_the_end_of_a_prefix_and_the_beginning_of_a_suffix() -> None:
    before, after = fitting_gap(list(range(100)), list(range(100)), [1, 2, 3], 40)
    assert (before, after) == ([*range(70, 100), 1, 2, 3], list(range(5)))
    assert fitting_gap([1], [2], [], 40) == ([1], [2])
    assert fitting_gap([1], [2], [0] * 30, 40) == ([1, *[0] * 30], [])
    assert fitting_gap([1, 2], [2], [], 3) == ([], [])


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_predict", "n_left"), [(100, 90, -1, 12), (100, 90, 4, 2), (100, 90, 50, 0), (9, 20, -1, 0)]
)
def test_the_end_of_the_files_fills_what_is_left_of_the_context(
    n_ctx: int, n_batch: int, n_predict: int, n_left: int
) -> None:
    left = fitting_extra(list(range(50)), n_ctx=n_ctx, n_batch=n_batch, n_predict=n_predict)
    assert left == list(range(50 - n_left, 50))
    assert fitting_extra([1], n_ctx=100, n_batch=10, n_predict=-1) == [1]


Body = dict[str, Any]


def requests(model: Any = None, **body: object) -> list[Request]:
    return list(parse_native({"prompt": "a", **body}).generation(Context(model or make_model())).requests)


def settings(model: Any = None, **body: object) -> Body:
    generation = parse_native({"prompt": "a", **body}).generation(Context(model or make_model()))
    assert isinstance(generation.writer, NativeWriter)
    found: Body = generation.writer.final(0, finished())["generation_settings"]
    return found


def test_an_empty_prompt_is_refused_where_the_model_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(model.vocab, "tokenize", lambda *_, **__: [])
    with pytest.raises(InvalidRequest, match="is empty"):
        requests(model, prompt="")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.5),
        ("top_k", 3),
        ("stop", ["x", "y"]),
        ("n_predict", 7),
        ("n_keep", -1),
        ("n_discard", 4),
        ("stream", True),
        ("n_probs", 2),
        ("min_keep", 3),
        ("grammar", "root ::= x"),
        ("samplers", ["top_k", "top_k", "temperature"]),
        ("timings_per_token", True),
        ("post_sampling_probs", True),
        ("dry_sequence_breakers", ["x"]),
        ("mirostat", 2),
        ("ignore_eos", True),
        ("seed", 5),
        ("reasoning_format", "none"),
    ],
)
def test_settings_show_what_was_asked_for(name: str, value: object) -> None:
    assert settings(**{name: value})[name] == value


def test_settings_show_what_it_came_to() -> None:
    shown = settings(max_tokens=3, top_p=9, logit_bias=[[65, False], ["B", 2]], ignore_eos=True)
    assert (shown["n_predict"], shown["max_tokens"], shown["top_p"], shown["seed"]) == (3, 3, 1.0, RANDOM_SEED)
    assert shown["logit_bias"] == [
        {"bias": None, "token": 65},
        {"bias": 2.0, "token": 66},
        {"bias": None, "token": 257},
        {"bias": None, "token": 259},
    ]
    assert settings(json_schema={"type": "string"})["grammar"] == '%llguidance {}\nstart: %json {"type":"string"}'


def test_the_verbose_object_of_a_whole_reply_is_written_once_per_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count(1)
    monkeypatch.setattr(NativeWriter, "final", lambda *_: {"n": next(calls)})
    asked = parse_completion({"prompt": "a", "n": 2, "verbose": True})
    writer = asked.generation(Context(make_model())).writer
    writer.streams = False
    for index in range(2):
        writer.feed(0, finished(index))
    body = cast(Body, writer.body())
    assert (body[KEY], next(calls)) == ({"n": 1}, 3)


SEEING = make_model(media=FakeReader(FakeVocab(), frozenset({"image"})))
SEEN: LoadedMedia = {MediaUrl("aa"): Bitmap("image", 2, 1, b"", "a"), MediaUrl("bb"): Bitmap("image", 3, 1, b"", "b")}


def shown(prompt: object, *, model: object = SEEING) -> str:
    (read,) = read_prompts(prompt)
    return prompt_text(read.read(model, SEEN).tokens, model)  # type: ignore[arg-type]


def test_one_file_may_come_without_a_list() -> None:
    assert shown({"prompt_string": "a<__media__>", "multimodal_data": "bb"}) == "<s>a(image 3x1)"


def test_parts_that_the_model_can_not_be_shown_are_named() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"url": "aa"}}]
    model = cast(LoadedModel, SimpleNamespace(**vars(SEEING), embedder=FakeEmbeddingRunner()))
    with pytest.raises(InvalidRequest, match=r"^input\.content\.1\.type: audio input"):
        read_embeddings({"input": {"content": parts}}, native=False).job(model, SEEN)


def tokens(**body: object) -> Json:
    return read_tokenize(body).work(make_model(), {})


def test_without_content_there_are_no_tokens() -> None:
    assert tokens() == {"tokens": []}
    assert tokens(content=None, add_special=True) == {"tokens": []}


@pytest.mark.parametrize("n", [16384, 16385, 40000])
@pytest.mark.parametrize("with_pieces", [False, True])
def test_many_tokens_are_the_same_as_few(n: int, with_pieces: bool) -> None:
    text = "abcdefghij" * (n // 10 + 1)
    written = orjson.loads(orjson.dumps(tokens(content=text[:n], with_pieces=with_pieces)))
    ids = [ord(letter) for letter in text[:n]]
    assert written == {"tokens": [{"id": i, "piece": chr(i)} for i in ids] if with_pieces else ids}


def test_a_suffix_that_does_not_fit_is_refused_before_every_prompt_has_it() -> None:
    asked = parse_completion({"prompt": ["a", "b"], "suffix": "s" * 256})
    with pytest.raises(ContextExceeded):
        asked.generation(Context(make_model(n_ctx=256)))


def test_log_probabilities_of_a_prompt_count_in_every_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.dialects.generation.MAX_ALTERNATIVES", 100)
    body = {"prompt": "x" * 60, "echo": True, "logprobs": 1, "max_tokens": 1}
    parse_completion(body).generation(Context(make_model()))
    with pytest.raises(InvalidRequest, match="up to 124 probabilities"):
        parse_completion(body | {"n": 2}).generation(Context(make_model()))
