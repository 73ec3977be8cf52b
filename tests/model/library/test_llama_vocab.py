"""Tokenizing and pieces of a real vocabulary."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.errors import InternalError
from server.llama.vocab import LlamaVocab

TEXTS = ["", " ", "hello world", "ünïcödé ☃ 🙂", "a\x00b", "\x00", "<|im_start|>user\n", "x" * 3000, "\r\n\t"]


def test_turns_end_where_a_generation_does_and_at_tokens_between_turns(
    tiny_vocab: LlamaVocab, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny_vocab.turn_ends() == tiny_vocab.eog  # it has none of the others
    (start,) = tiny_vocab.tokenize("<|im_start|>", add_special=False, parse_special=True)
    monkeypatch.setattr("server.llama.vocab._TURN_ENDS", ("<|im_start|>", "<|end|>", "a"))
    (letter,) = tiny_vocab.tokenize("a", add_special=False, parse_special=True)
    assert tiny_vocab.turn_ends() == tiny_vocab.eog | {start, letter}


@pytest.mark.parametrize("token", [-1, 400, 1 << 31])
def test_ids_outside_the_vocabulary_never_reach_the_library(tiny_vocab: LlamaVocab, token: int) -> None:
    for call in (tiny_vocab.piece, tiny_vocab.text, tiny_vocab.attributes):
        with pytest.raises(InternalError):
            call(token)


def test_halves_of_surrogate_pairs_do_not_stop_anything(tiny_vocab: LlamaVocab) -> None:
    tokens = tiny_vocab.tokenize("a\ud83d\ude42b\ud800c", add_special=False, parse_special=False)
    assert tiny_vocab.detokenize(tokens).decode() == "a🙂b\ufffdc"


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_comes_back(tiny_vocab: LlamaVocab, text: str) -> None:
    tokens = tiny_vocab.tokenize(text, add_special=False, parse_special=False)
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    assert tiny_vocab.detokenize(tokens) == expected


def test_threads_may_tokenize_at_the_same_time(tiny_vocab: LlamaVocab) -> None:
    texts = [f"{text} {i}" for i in range(40) for text in TEXTS]

    def there_and_back(text: str) -> bytes:
        return tiny_vocab.detokenize(tiny_vocab.tokenize(text, add_special=False, parse_special=False))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(there_and_back, texts)) == [text.encode() for text in texts]


@settings(max_examples=50, deadline=None)
@given(data=st.data(), add_special=st.booleans(), parse_special=st.booleans())
def test_a_text_handed_over_in_pieces_has_the_tokens_of_the_whole(
    tiny_vocab: LlamaVocab, data: st.DataObject, add_special: bool, parse_special: bool
) -> None:
    part = st.sampled_from(["<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|", "|>", " ", "\n\n", "hello", "é", "1"])
    parts = data.draw(st.lists(st.tuples(part, st.integers(1, 40)), min_size=50, max_size=200))
    text = "".join(unit * times for unit, times in parts)
    whole = tiny_vocab._tokenize(text.encode(), add_special, parse_special)
    assert tiny_vocab.tokenize(text, add_special=add_special, parse_special=parse_special) == whole


def test_a_text_full_of_special_tokens_takes_linear_time(tiny_vocab: LlamaVocab) -> None:
    n = 400_000  # an hour, were it handed over whole
    tokens = tiny_vocab.tokenize("<|im_start|>x" * n, add_special=False, parse_special=True)
    assert tokens == [395, ord("x")] * n or len(tokens) == 2 * n
