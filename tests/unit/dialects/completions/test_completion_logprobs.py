"""OpenAI's lists of ``logprobs``: where each token's text begins, the names of alternatives, an echoed prompt."""

import json

from server.dialects.common import Header
from server.dialects.completions.parse import parse_completion
from server.dialects.completions.write import CompletionWriter, Echo, TokenLists, echo
from server.engine.media import MediaPrompt, MediaSpan
from server.engine.request import Finished, FinishReason, PromptLogprobs, Started, Text, Timings, TokenLogprob
from tests.support.fakes import FakeVocab


def token(piece: bytes, logprob: float, *top: TokenLogprob, ends: bool = False) -> TokenLogprob:
    return TokenLogprob(len(piece), piece, logprob, top, ends)


def test_offsets_count_the_characters_before_a_tokens_first_byte() -> None:
    lists = TokenLists(3)
    found = lists.of([token(b" a", -1.0), token("é".encode()[:1], -1.0)])
    assert found["text_offset"] == [3, 5]
    assert found["tokens"] == [" a", "bytes:\\xc3"]
    found = lists.of([token("é".encode()[1:], -1.0), token(b"b", -1.0), token(b"", -2.0, ends=True)])
    assert found["text_offset"] == [5, 6, 7]
    assert found["tokens"] == ["bytes:\\xa9", "b", ""]


def test_alternatives_are_named_by_their_text_and_hold_the_token_itself() -> None:
    best, same = token(b"x", -0.1), token(b"x", -3.0)
    found = TokenLists(0).of([token(b"y", -2.0, best, same)])
    assert found["top_logprobs"] == [{"x": -0.1, "y": -2.0}]
    assert max(found["top_logprobs"][0].values()) == -0.1
    assert TokenLists(0).of([token(b"x", -0.1, best)])["top_logprobs"] == [{"x": -0.1}]


def test_media_have_no_log_probabilities_and_stand_where_their_marker_is() -> None:
    spans = (MediaSpan(2, 2, 2, True, "a"), MediaSpan(4, 1, 1, True, "b"))
    prompt = MediaPrompt([FakeVocab.bos, ord("x"), -5, -6, -7, ord(" "), ord("y")], spans)
    lists = echo(FakeVocab(), "x<m><m> y", prompt, "<m>")
    lists.add([token(b"x", -1.0), None, None, None, token(b" ", -2.0), token(b"y", -3.0)])
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
