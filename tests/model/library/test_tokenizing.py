"""Long texts: the library's std::regex recurses for each character of a match, and its memory grows with the text."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.llama.loader import FileVocabulary
from server.llama.vocab import LlamaVocab, with_deep_stack
from server.options.values import metadata_override
from server.pool.spec import LoadParams, ModelSpec
from tests.support.real_server import ROOT

RECURSIVE = ("tekken", "deepseek-llm", "deepseek-v3", "falcon", "default", "poro-chat", "exaone-moe")
OTHERS = ("llama-bpe", "qwen2", "gpt-2", "smollm", "gpt-4o", "deepseek-coder", "youtu", "tiny_aya", "kimi-k2", "afmoe")
RUNS = r"""
import threading
from tests.model.library.test_tokenizing import FileVocabulary, RECURSIVE, demo

def tokenize(vocabularies):
    for vocab in vocabularies:
        for unit in "a", "!", "7", " ", "\n", "\u4e2d", "e\u0301", "\u2192", "a-", "a ", "!\n/":
            print(ascii(unit), flush=True)
            text = unit * ((70_000 if unit == "a" else 10_000) // len(unit)) + "<|im_end|>"
            assert vocab.detokenize(vocab.tokenize(text, add_special=False, parse_special=True)) == text.encode()

vocabularies = [FileVocabulary(demo(pre)).vocab for pre in RECURSIVE]
thread = threading.Thread(target=tokenize, args=[vocabularies])
thread.start()
thread.join()
tokenize(vocabularies[:1])
print("done")
"""


def demo(pre: str) -> ModelSpec:
    """Return the demo model with another pre-tokenizer."""
    native = LoadParams(metadata_overrides=(metadata_override(f"tokenizer.ggml.pre=str:{pre}"),))
    return ModelSpec("demo", ROOT / "models" / "demo.gguf", native=native)


@pytest.fixture(scope="module")
def vocab_with() -> Iterator[Callable[[str], LlamaVocab]]:
    with ExitStack() as stack:
        yield cache(lambda pre: stack.enter_context(closing(FileVocabulary(demo(pre)))).vocab)


def test_a_long_run_of_a_character_does_not_overflow_a_small_stack() -> None:
    """Threads have 1 MiB, as with musl, where glibc gives them 8."""
    command = ["sh", "-c", 'ulimit -s 1024 && exec "$0" -c "$1"', sys.executable, RUNS]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.endswith("done\n"), (done.returncode, done.stdout[-100:], done.stderr[-2000:])


def test_the_longest_token_bounds_the_size_of_a_text(vocab_with: Callable[[str], LlamaVocab]) -> None:
    vocab = vocab_with("tekken")
    assert vocab.max_token_bytes == max(len(vocab.piece(token)) for token in range(vocab.n_tokens))


def test_a_text_with_many_long_runs_starts_one_thread(
    vocab_with: Callable[[str], LlamaVocab], monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, calls = vocab_with("tekken"), list[object]()

    def deep(call: Callable[[], object]) -> object:
        calls.append(call)
        return with_deep_stack(call)

    monkeypatch.setattr("server.llama.vocab.with_deep_stack", deep)
    text = ("\u4e2d" * 500 + "<|im_end|>") * 20
    tokens = vocab.tokenize(text, add_special=False, parse_special=True)
    assert vocab.detokenize(tokens) == text.encode()
    assert len(calls) == 1


WORDS = ("the", "It", "I'm", "don't", "1234567", "été", "中文", "</a>", "a_b", "==", "é", "!?", "x/y", "<|im_start|>")
SPACES = (" ", "  ", ", ", ". ", "\n", "\r\n", " \n ", "\n/", "\t", " - ", '":"', "=", "(", "'s ", "'", "...\n")


@pytest.mark.parametrize("pre", [*RECURSIVE, *OTHERS])
@settings(max_examples=8, deadline=None)
@given(random=st.randoms(use_true_random=True))
def test_a_long_text_that_is_cut_has_the_same_tokens(
    vocab_with: Callable[[str], LlamaVocab], pre: str, random: Random
) -> None:
    vocab, text = vocab_with(pre), "".join(random.choice(WORDS) + random.choice(SPACES) for _ in range(800))
    if pre == "exaone-moe":  # a match contains many words
        text = text.replace(" ", ", ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.llama.vocab.MAX_PIECE_BYTES", 1000)
        tokens = vocab.tokenize(text, add_special=True, parse_special=True)
    assert tokens == vocab._tokenize(text.encode(), True, True)  # private: a text that is not cut
