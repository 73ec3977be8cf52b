"""Prompts without a chat template: OpenAI's completions and log probabilities, llama-server's own, infill, tokenize."""

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


def test_text_offset_counts_the_characters_before_the_first_byte_of_a_token() -> None:
    lists = TokenLists(3)
    found = lists.take([token(b" a", -1.0), token("é".encode()[:1], -1.0)])
    assert found["text_offset"] == [3, 5]
    assert found["tokens"] == [" a", "bytes:\\xc3"]
    found = lists.take([token("é".encode()[1:], -1.0), token(b"b", -1.0), token(b"", -2.0, ends=True)])
    assert found["text_offset"] == [5, 6, 7]
    assert found["tokens"] == ["bytes:\\xa9", "b", ""]


def test_top_logprobs_merge_equal_texts_and_contain_the_sampled_token() -> None:
    best, same = token(b"x", -0.1), token(b"x", -3.0)
    found = TokenLists().take([token(b"y", -2.0, best, same)])
    assert found["top_logprobs"] == [{"x": -0.1, "y": -2.0}]
    assert max(found["top_logprobs"][0].values()) == -0.1
    assert TokenLists().take([token(b"x", -0.1, best)])["top_logprobs"] == [{"x": -0.1}]


def test_echoed_media_have_empty_tokens_at_the_offset_of_their_marker() -> None:
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


def test_echoed_offsets_skip_the_space_that_a_vocabulary_adds_after_control_tokens() -> None:
    echoed = Echo("a</s>b c", (b"<s>", b" a", b"</s>", b" b", b" c"))
    echoed.score([token(piece, -1.0) for piece in echoed.pieces[1:]])
    assert echoed.lists["text_offset"] == [0, 0, 1, 5, 6]


def test_an_echoing_stream_buffers_choices_until_the_prompt_is_scored() -> None:
    echoed = Echo("abc", (b"a", b"b", b"c"))
    request = parse_completion({"prompt": "x", "n": 2, "logprobs": 1})
    stream = CompletionWriter(request, Header("m"), [echoed])
    sampled = token(b"d", -0.5)
    end = Finished(1, FinishReason.LIMIT, "", 3, 0, 1, Timings(), 0, 1)
    assert stream.feed(0, PromptLogprobs(0, (token(b"b", -1.0),))) == []
    assert stream.feed(0, Started(1, 3, 2)) == []
    assert stream.feed(0, Text(1, "d", (100,), (sampled,))) == []
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


def test_infill_keeps_the_end_of_the_prefix_and_the_start_of_the_suffix() -> None:
    before, after = fitting_gap(list(range(100)), list(range(100)), [1, 2, 3], 40)
    assert (before, after) == ([*range(70, 100), 1, 2, 3], list(range(5)))
    assert fitting_gap([1], [2], [], 40) == ([1], [2])
    assert fitting_gap([1], [2], [0] * 30, 40) == ([1, *[0] * 30], [])
    assert fitting_gap([1, 2], [2], [], 3) == ([], [])


@pytest.mark.parametrize(
    ("n_ctx", "n_batch", "n_predict", "n_kept"), [(100, 90, -1, 12), (100, 90, 4, 2), (100, 90, 50, 0), (9, 20, -1, 0)]
)
def test_infill_fills_the_context_with_the_end_of_the_extra_files(
    n_ctx: int, n_batch: int, n_predict: int, n_kept: int
) -> None:
    extra = fitting_extra(list(range(50)), n_ctx=n_ctx, n_batch=n_batch, n_predict=n_predict)
    assert extra == list(range(50 - n_kept, 50))
    assert fitting_extra([1], n_ctx=100, n_batch=10, n_predict=-1) == [1]


Body = dict[str, Any]


def settings(model: Any = None, **body: object) -> Body:
    generation = parse_native({"prompt": "a", **body}).generation(Context(model or make_model()))
    assert isinstance(generation.writer, NativeWriter)
    shown: Body = generation.writer.final(0, finished())["generation_settings"]
    return shown


def test_an_empty_prompt_is_rejected_if_the_vocabulary_adds_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    monkeypatch.setattr(model.vocab, "tokenize", lambda *_, **__: [])
    with pytest.raises(InvalidRequest, match="is empty"):
        parse_native({"prompt": ""}).generation(Context(model))


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
def test_generation_settings_show_requested_values(name: str, value: object) -> None:
    assert settings(**{name: value})[name] == value


def test_generation_settings_show_resolved_values() -> None:
    shown = settings(max_tokens=3, top_p=9, logit_bias=[[65, False], ["B", 2]], ignore_eos=True)
    assert (shown["n_predict"], shown["max_tokens"], shown["top_p"], shown["seed"]) == (3, 3, 1.0, RANDOM_SEED)
    assert shown["logit_bias"] == [
        {"bias": None, "token": 65},
        {"bias": 2.0, "token": 66},
        {"bias": None, "token": 257},
        {"bias": None, "token": 259},
    ]
    assert settings(json_schema={"type": "string"})["grammar"] == '%llguidance {}\nstart: %json {"type":"string"}'


def test_a_verbose_whole_reply_builds_its_object_once_per_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count(1)
    monkeypatch.setattr(NativeWriter, "final", lambda *_: {"n": next(calls)})
    request = parse_completion({"prompt": "a", "n": 2, "verbose": True})
    writer = request.generation(Context(make_model())).writer
    writer.streams = False
    for index in range(2):
        writer.feed(0, finished(index))
    body = cast(Body, writer.body())
    assert (body[KEY], next(calls)) == ({"n": 1}, 3)


VISION_MODEL = make_model(media=FakeReader(FakeVocab(), frozenset({"image"})))
IMAGES: LoadedMedia = {MediaUrl("aa"): Bitmap("image", 3, 1, b"", "a")}


def test_multimodal_data_may_be_one_file_instead_of_a_list() -> None:
    (prompt,) = read_prompts({"prompt_string": "a<__media__>", "multimodal_data": "aa"})
    assert prompt_text(prompt.read(VISION_MODEL, IMAGES).tokens, VISION_MODEL) == "<s>a(image 3x1)"


def test_an_unsupported_media_type_is_named_with_its_path() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {"url": "aa"}}]
    model = cast(LoadedModel, SimpleNamespace(**vars(VISION_MODEL), embedder=FakeEmbeddingRunner()))
    with pytest.raises(InvalidRequest, match=r"^input\.content\.1\.type: audio input"):
        read_embeddings({"input": {"content": parts}}, native=False).job(model, IMAGES)


def tokens(**body: object) -> Json:
    return read_tokenize(body).work(make_model(), {})


def test_tokenize_without_content_returns_no_tokens() -> None:
    assert tokens() == {"tokens": []}
    assert tokens(content=None, add_special=True) == {"tokens": []}


@pytest.mark.parametrize("n", [16384, 16385, 40000])
@pytest.mark.parametrize("with_pieces", [False, True])
def test_long_token_lists_are_written_like_short_ones(n: int, with_pieces: bool) -> None:
    text = "abcdefghij" * (n // 10 + 1)
    reply = orjson.loads(orjson.dumps(tokens(content=text[:n], with_pieces=with_pieces)))
    ids = [ord(letter) for letter in text[:n]]
    assert reply == {"tokens": [{"id": i, "piece": chr(i)} for i in ids] if with_pieces else ids}


def test_a_suffix_that_exceeds_the_context_is_rejected() -> None:
    request = parse_completion({"prompt": ["a", "b"], "suffix": "s" * 256})
    with pytest.raises(ContextExceeded):
        request.generation(Context(make_model(n_ctx=256)))


def test_prompt_logprobs_count_toward_the_limit_in_each_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.dialects.generation.MAX_ALTERNATIVES", 100)
    body = {"prompt": "x" * 60, "echo": True, "logprobs": 1, "max_tokens": 1}
    parse_completion(body).generation(Context(make_model()))
    with pytest.raises(InvalidRequest, match="up to 124 probabilities"):
        parse_completion(body | {"n": 2}).generation(Context(make_model()))
