"""Fill in the middle: the tokens around a gap (llama.cpp tools/server/server-common.cpp, format_prompt_infill).

::

    [repo]myproject                       where the vocabulary has tokens for several files
    [file]NAME / TEXT ...                 further files
    [file]filename
    [prefix]PREFIX PROMPT [suffix]SUFFIX [middle]

With `suffix_first` (``--spm-infill``) suffix and prefix change places, as some models have learned it.
"""

from collections.abc import Sequence
from typing import Any

from server.dialects.fields import Body, field_error
from server.errors import ContextExceeded, NotSupported
from server.pool.model import LoadedModel
from server.vocab import Vocab

_PROJECT = "myproject\n"
_FILE = "filename\n"
_SNIPPET = "\n\n--- snippet ---\n\n"
_OWN_TOKENS = 2  # of the suffix's share: that of the suffix and that of the middle


class Extra(Body):
    """A further file, or a part of one."""

    text: str
    filename: str = "tmp"
    time: Any = None  # of llama.vim; has no effect


def fitting_gap(
    prefix: Sequence[int], suffix: Sequence[int], prompt: Sequence[int], n_batch: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the tokens before and after the gap, which begins with `prompt`: the end of `prefix` takes up to three
    quarters of a batch, the start of `suffix` one.
    """
    n_prefix = 3 * (n_batch // 4)
    n_suffix = max(0, n_batch // 4 - (_OWN_TOKENS + len(prompt)))
    return [*prefix[max(0, len(prefix) - n_prefix) :], *prompt], suffix[:n_suffix]


def require_fim(vocab: Vocab) -> None:
    """Raise `NotSupported` for a model that has not learned to fill gaps."""
    parts = (("prefix", vocab.fim_prefix), ("suffix", vocab.fim_suffix), ("middle", vocab.fim_middle))
    missing = [f"{name} token is missing. " for name, token in parts if token == -1]
    if missing:
        raise NotSupported(f"Infill is not supported by this model: {''.join(missing)}")


def fim_tokens(
    vocab: Vocab, prefix: Sequence[int], suffix: Sequence[int], extra: Sequence[int] = (), *, suffix_first: bool = False
) -> list[int]:
    """Return the prompt for the gap between `prefix` and `suffix`; `extra` is first, followed by the model's BOS."""
    before = [vocab.fim_prefix, *prefix]
    after = [vocab.fim_suffix, *suffix]
    first, second = (after, before) if suffix_first else (before, after)
    bos = [vocab.bos] if vocab.add_bos and vocab.bos != -1 else []
    return [*extra, *bos, *first, *second, vocab.fim_middle]


def suffix_prompt(model: LoadedModel, prefix: Sequence[int], suffix: str) -> list[int]:
    """Return the prompt for the gap before ``suffix``, a field of other APIs. Raises `InvalidRequest`."""
    try:
        require_fim(model.vocab)
    except NotSupported as error:
        raise field_error("suffix", error.message) from None
    tokens = fim_tokens(model.vocab, prefix, _plain(model.vocab, suffix), suffix_first=model.spec.spm_infill)
    if len(tokens) >= model.engine.n_ctx_seq:  # before each further prompt has the suffix, too
        raise ContextExceeded(len(tokens), model.engine.n_ctx_seq)
    return tokens


def extra_tokens(vocab: Vocab, files: Sequence[Extra]) -> list[int]:
    """Return the further files, in the pattern of a repository where the vocabulary has its tokens."""
    tokens: list[int] = []
    if vocab.fim_repo != -1:
        tokens += [vocab.fim_repo, *_plain(vocab, _PROJECT)]
    for file in files:
        if vocab.fim_sep != -1:
            tokens += [vocab.fim_sep, *_plain(vocab, file.filename + "\n")]
        else:
            tokens += _plain(vocab, _SNIPPET)
        tokens += _plain(vocab, file.text)
    if vocab.fim_sep != -1:
        tokens += [vocab.fim_sep, *_plain(vocab, _FILE)]
    return tokens


def fitting_extra(tokens: Sequence[int], *, n_ctx: int, n_batch: int, n_predict: int) -> Sequence[int]:
    """Return the end of `tokens` that fits the context besides a batch; `n_predict` is the model's own limit."""
    n = min(max(0, n_ctx - n_batch - 2 * n_predict), len(tokens))
    return tokens[len(tokens) - n :]


def _plain(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=False)
