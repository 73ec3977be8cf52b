"""Fill in the middle: the prompt for a gap in a text (llama.cpp tools/server/server-common.cpp, format_prompt_infill).

::

    [repo]myproject                       if the vocabulary has tokens for several files
    [file]NAME / TEXT ...                 additional files
    [file]filename
    [prefix]PREFIX PROMPT [suffix]SUFFIX [middle]

With `suffix_first` (``--spm-infill``) the suffix precedes the prefix, for models that were trained so.
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
_N_MARKERS = 2  # tokens for [suffix] and [middle]


class Extra(Body):
    """An additional file, or a part of one."""

    text: str
    filename: str = "tmp"
    time: Any = None  # sent by llama.vim; no effect


def fitting_gap(
    prefix: Sequence[int], suffix: Sequence[int], prompt: Sequence[int], n_batch: int
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the tokens before the gap, including `prompt`, and after it, truncated to one batch.

    Of `prefix`, the end stays, up to three quarters of the batch; of `suffix`, the start.
    """
    n_prefix = 3 * (n_batch // 4)
    n_suffix = max(0, n_batch // 4 - (_N_MARKERS + len(prompt)))
    return [*prefix[max(0, len(prefix) - n_prefix) :], *prompt], suffix[:n_suffix]


def require_fim(vocab: Vocab) -> None:
    """Raise `NotSupported` for a model without tokens for infill."""
    parts = (("prefix", vocab.fim_prefix), ("suffix", vocab.fim_suffix), ("middle", vocab.fim_middle))
    missing = [f"{name} token is missing. " for name, token in parts if token == -1]
    if missing:
        raise NotSupported(f"Infill is not supported by this model: {''.join(missing)}")


def fim_tokens(
    vocab: Vocab, prefix: Sequence[int], suffix: Sequence[int], extra: Sequence[int] = (), *, suffix_first: bool = False
) -> list[int]:
    """Return `extra`, the model's BOS, and the prompt for the gap between `prefix` and `suffix`."""
    before = [vocab.fim_prefix, *prefix]
    after = [vocab.fim_suffix, *suffix]
    first, second = (after, before) if suffix_first else (before, after)
    bos = [vocab.bos] if vocab.add_bos and vocab.bos != -1 else []
    return [*extra, *bos, *first, *second, vocab.fim_middle]


def suffix_prompt(model: LoadedModel, prefix: Sequence[int], suffix: str) -> list[int]:
    """Return the prompt for the field ``suffix`` of other APIs. Raises `InvalidRequest` and `ContextExceeded`."""
    try:
        require_fim(model.vocab)
    except NotSupported as error:
        raise field_error("suffix", error.message) from None
    tokens = fim_tokens(model.vocab, prefix, _plain(model.vocab, suffix), suffix_first=model.spec.spm_infill)
    if len(tokens) >= model.engine.n_ctx_seq:  # checked before further prompts are built
        raise ContextExceeded(len(tokens), model.engine.n_ctx_seq)
    return tokens


def extra_tokens(vocab: Vocab, files: Sequence[Extra]) -> list[int]:
    """Return the tokens of additional files, as a repository if the vocabulary has tokens for it."""
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
    """Return the end of `tokens` that fits into the context besides one batch and twice the model's `n_predict`."""
    n = min(max(0, n_ctx - n_batch - 2 * n_predict), len(tokens))
    return tokens[len(tokens) - n :]


def _plain(vocab: Vocab, text: str) -> list[int]:
    return vocab.tokenize(text, add_special=False, parse_special=False)
