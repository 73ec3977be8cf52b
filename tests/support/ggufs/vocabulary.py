"""Vocabularies: byte-level BPE with merges learned from `CORPUS`, SentencePiece with byte fallback, and WordPiece."""

import string
from collections import Counter
from functools import cache
from itertools import pairwise

from gguf import GGUFWriter, TokenType

from tests.support.ggufs.model import Fim, TinyModel

FIM_TOKENS: dict[Fim, tuple[str, ...]] = {
    "none": (),
    "file": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "repo": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
}  # llama.cpp recognizes them by their text (llama-vocab.cpp)
BERT_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORD_START = "\u2581"  # llama.cpp's prefix of a word's first token; WordPiece's "##" is dropped on conversion
CORPUS = (
    "the quick brown fox jumps over the lazy dog and then the other animals of the forest come together to see "
    "what the server is doing with the tokens that it reads in the stream of requests, one after the other, while "
    "the answer is written in small pieces that arrive in order at the client; 0123456789 hello world this is a test"
)


def write_vocabulary(writer: GGUFWriter, model: TinyModel) -> None:
    """Write all ``tokenizer.*`` keys except the chat templates."""
    if model.arch == "bert":
        _write_word_pieces(writer, model)
    elif model.tokenizer == "spm":
        _write_sentence_pieces(writer, model)
    else:
        _write_byte_pairs(writer, model)


def _write_byte_pairs(writer: GGUFWriter, model: TinyModel) -> None:
    specials = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", *FIM_TOKENS[model.fim])
    letters, merges = _byte_pairs(model.n_vocab - 256 - len(specials))
    tokens = [*letters, *("".join(pair) for pair in merges)]
    ids = _write_tokens(writer, tokens, model.n_vocab, specials, specials_first=False)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(ids["<s>"])
    writer.add_eos_token_id(ids["</s>"])
    writer.add_eot_token_id(ids["<|im_end|>"])
    writer.add_add_bos_token(True)


def _write_sentence_pieces(writer: GGUFWriter, model: TinyModel) -> None:
    """Write letters and words with scores, as in Llama 2; other characters become byte tokens."""
    letters = [*string.ascii_letters, *string.digits, *string.punctuation, WORD_START, "\u00e9"]
    words = sorted({WORD_START + word.strip(",;") for word in CORPUS.split()})
    pieces = [*letters, *words, '{"', '":', '",', "}]", "the", "ing"]
    groups = [
        (["<unk>"], TokenType.UNKNOWN),
        (["<s>", "</s>", "<|im_start|>", "<|im_end|>"], TokenType.CONTROL),
        ([f"<0x{byte:02X}>" for byte in range(256)], TokenType.BYTE),
        (pieces, TokenType.NORMAL),
    ]
    n_filled = model.n_vocab - sum(len(texts) for texts, _ in groups)
    groups.append(([f"<unused{i}>" for i in range(n_filled)], TokenType.UNUSED))
    tokens = [(text, kind) for texts, kind in groups for text in texts]
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([int(kind) for _, kind in tokens])
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(4)
    writer.add_add_bos_token(True)


def _write_word_pieces(writer: GGUFWriter, model: TinyModel) -> None:
    singles = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    words = sorted({word.strip(",;") for word in CORPUS.split()} - set(singles))
    tokens = [*(WORD_START + text for text in (*singles, *words)), *singles, "ing", "er"]
    ids = _write_tokens(writer, tokens, model.n_vocab, BERT_SPECIALS, specials_first=True)
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(2)
    writer.add_bos_token_id(ids["[CLS]"])
    writer.add_sep_token_id(ids["[SEP]"])
    writer.add_unk_token_id(ids["[UNK]"])
    writer.add_pad_token_id(ids["[PAD]"])
    writer.add_mask_token_id(ids["[MASK]"])


def _write_tokens(
    writer: GGUFWriter, tokens: list[str], n_vocab: int, specials: tuple[str, ...], *, specials_first: bool
) -> dict[str, int]:
    """Write tokens and their types, padded to `n_vocab` with unused ones. Returns the id of each text."""
    filler = [f"<unused{i}>" for i in range(n_vocab - len(tokens) - len(specials))]
    groups = [(tokens, TokenType.NORMAL), (filler, TokenType.UNUSED)]
    groups.insert(0 if specials_first else 2, (list(specials), TokenType.CONTROL))
    all_tokens = [token for group, _ in groups for token in group]
    writer.add_token_list(all_tokens)
    writer.add_token_types([int(kind) for group, kind in groups for _ in group])
    return {token: i for i, token in enumerate(all_tokens)}


@cache
def _byte_pairs(n_merges: int) -> tuple[list[str], list[tuple[str, str]]]:
    letter = byte_letters()
    words = Counter(tuple(letter[b] for b in (" " + word).encode()) for word in CORPUS.split())
    merges: list[tuple[str, str]] = []
    while len(merges) < n_merges:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair in pairwise(word):
                pairs[pair] += count
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = Counter({_merged(word, best): count for word, count in words.items()})
    return [letter[b] for b in range(256)], merges


def _merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    out: list[str] = []
    for part in word:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return tuple(out)


def byte_letters() -> dict[int, str]:
    """Return GPT-2's printable character for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in printable}
    others = [b for b in range(256) if b not in letters]
    return letters | {b: chr(256 + i) for i, b in enumerate(others)}
