"""The tokenizer: byte-level BPE trained on the corpus, with llama.cpp's pre-tokenizer qwen2."""

import argparse
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from corpus import stream
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

N_VOCAB = 2560
PRE = "qwen2"
# The split that llama.cpp applies for "qwen2" (src/llama-vocab.cpp): digits are single tokens.
_SPLIT = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Control tokens are not rendered. Tags are part of the text that a parser reads.
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<|fim_pad|>",
)
TAGS = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<tools>",
    "</tools>",
    "<think>",
    "</think>",
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Train a tokenizer of N_VOCAB tokens: control tokens, tags, 256 bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB,
        special_tokens=[*CONTROL, *TAGS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def corpus_texts(n_samples: int, seed: int = 7) -> Iterator[str]:
    """Yield the texts of the first samples."""
    for sample in islice(stream(seed), n_samples):
        yield "".join(text for text, _ in sample.parts())


def tokenizer_at(path: Path) -> Tokenizer:
    """Return the tokenizer stored at `path`. Trains it if it does not exist."""
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = train_tokenizer(corpus_texts(40_000))
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    return tokenizer


def main() -> None:
    """Train the tokenizer if it does not exist."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "build" / "tokenizer.json")
    print(tokenizer_at(parser.parse_args().out).get_vocab_size(), "tokens")


if __name__ == "__main__":
    main()
