"""The contexts of a draft model, and of a model's own MTP (NextN) heads. The latter is a second context of the same
weights, whose graph is the layer after the model's last one.

The heads decode each token with the model's hidden state at the position before, an output of the model's decode
(llama.cpp common/speculative.cpp, common_speculative_impl_draft_mtp). They follow every decode, also of prefill. Tokens
are buffered until there are enough, or until a draft is needed: then one decode has both, where llama-server needs two.
States that were loaded from RAM or disk have no hidden states. The heads start after them, at first with a lower
acceptance rate.
"""

import ctypes
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp.llama_cpp_ext as _bindings
import numpy as np
import numpy.typing as npt

from server.engine.runner_api import BatchEntry, RunnerInfo
from server.errors import CONTAINED, InternalError
from server.llama.context.sequences import NativeSequences
from server.llama.library import fast
from server.llama.sampling.candidates import Logits

log = logging.getLogger(__name__)


_NEGLIGIBLE = 16.0  # logits that are lower than the highest by this do not change the sum of probabilities


class LlamaDraftRunner(NativeSequences):
    """`server.engine.runner_api.DraftRunner`. The target model has the first `n_shared` of its `n_vocab` tokens."""

    def __init__(self, context: int, info: RunnerInfo, n_vocab: int, n_shared: int) -> None:
        super().__init__(context, info, n_vocab)
        self._n_shared = min(n_shared, n_vocab)
        self._n_vocab = n_vocab

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode as `LlamaRunner.decode`, but wait for the device also without outputs, because `DraftModel.prefill`
        measures its duration.
        """
        return self._decode_batch(self._batch, entries, wait=True)

    def best(self, output: int) -> tuple[int, float]:
        pointer = fast.get_logits_ith(self._open(), self._outputs[output])
        if not pointer:
            raise InternalError("the library has no logits for a token that asked for them")
        all_logits: Logits = np.ctypeslib.as_array(pointer, (self._n_vocab,))
        logits = all_logits[: self._n_shared]
        token = int(logits.argmax())
        highest = float(logits[token])
        if not math.isfinite(highest):
            raise InternalError("the draft model computed logits that are not numbers")
        near = logits[logits > highest - _NEGLIGIBLE]
        return token, 1.0 / float(np.exp(near - highest).sum())


Rows = npt.NDArray[np.float32]

READ = 32  # buffered tokens of all sequences above which the heads decode them
_MAX_STATES = 129  # hidden states per sequence: for the longest draft and the token before it

_ext: Any = _bindings  # C++ functions, which llama-cpp-python binds as "not part of the stable API"


@dataclass(slots=True)
class _HeadsSequence:
    """A sequence of the heads. They have decoded ``n_read`` positions; ``tokens`` is the buffer of the next ones.

    ``states``: the model's hidden states of the last positions, at least from the one before ``tokens`` on; None if
    unknown. ``draft_state``: the heads' hidden state after the last draft token.
    """

    n_read: int = 0
    tokens: list[int] = field(default_factory=list)
    states: Rows | None = None
    draft_state: Rows | None = None

    @property
    def end(self) -> int:
        return self.n_read + len(self.tokens)

    @property
    def before(self) -> Rows:
        """Hidden states at the positions before each of ``tokens``, and before the next token."""
        assert self.states is not None
        return self.states[-len(self.tokens) - 1 :]


class LlamaMtpHeads(LlamaDraftRunner):
    """`server.engine.runner_api.MtpHeads` for the native context `target`."""

    def __init__(self, target: int, heads: int, info: RunnerInfo, n_vocab: int, n_embd: int) -> None:
        """`target`, `heads`: native contexts of the model and of its heads. `n_embd`: size of a hidden state."""
        super().__init__(heads, info, n_vocab, n_vocab)
        self._target, self._n_embd = target, n_embd
        self._sequences = [_HeadsSequence() for _ in range(info.n_seq)]
        self._initial_state = np.zeros((1, n_embd), np.float32)  # before the first token
        self._states = np.zeros((info.n_batch, n_embd), np.float32)
        self._batch.native.embd = self._states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        self._failed = False
        _ext.llama_set_embeddings_nextn(target, True, False)  # output the hidden states of all tokens
        _ext.llama_set_embeddings_nextn(heads, True, True)  # and of tokens with logits

    # ---- operations of the model

    def follow(self, entries: Sequence[BatchEntry]) -> None:
        """Record that the model has decoded `entries` of text. After an error the heads make no more drafts."""
        if self._failed:
            return
        try:
            self._follow(entries)
            if sum(len(each.tokens) for each in self._sequences) > READ:
                self._read_all()
        except CONTAINED as error:
            log.warning("a model's MTP heads failed; it continues without them: %s", error)
            self._failed = True

    def _follow(self, entries: Sequence[BatchEntry]) -> None:
        n = sum(len(entry.tokens) for entry in entries)
        address = _ext.llama_get_embeddings_nextn(self._target)
        if not address:
            raise InternalError("the library has no hidden states of the last decode")
        states = np.ctypeslib.as_array(address, (n, self._n_embd))
        for entry in entries:
            self._add(entry.seq, entry.pos, entry.tokens, states[: len(entry.tokens)])
            states = states[len(entry.tokens) :]

    def _add(self, seq: int, pos: int, tokens: Sequence[int], states: Rows) -> None:
        one = self._sequences[seq]
        if pos < one.end:
            self.truncate(seq, pos)
        before = one.states if pos else self._initial_state
        if before is None or one.end != pos:  # without the hidden state before it, the heads skip the first token
            self.forget(seq)
            one.n_read, tokens, before = pos + 1, tokens[1:], states[:0]
        one.tokens += tokens
        one.states = np.concatenate((before, states))[-max(_MAX_STATES, len(one.tokens) + 1) :]

    def _read_all(self) -> None:
        """Decode all buffered tokens."""
        for seq, one in enumerate(self._sequences):
            while one.tokens:
                n = min(len(one.tokens), self.info.n_batch)
                if not self._decode([(BatchEntry(seq, one.n_read, one.tokens[:n]), one.before[:n])]):
                    self.forget(seq)
                    break
                one.n_read += n
                del one.tokens[:n]

    def truncate(self, seq: int, pos: int) -> None:
        """Record that the model has removed positions >= `pos` of `seq`."""
        one = self._sequences[seq]
        if pos >= one.end:
            return
        n_removed = one.end - pos
        states = one.states[:-n_removed] if one.states is not None and n_removed < len(one.states) else None
        if pos > one.n_read:
            del one.tokens[pos - one.n_read :]
        elif pos > 0 and self.seq_remove(seq, pos):
            one.tokens, one.n_read = [], pos
        else:
            self.forget(seq)
            return
        one.states, one.draft_state = states, None

    def forget(self, seq: int) -> None:
        """Empty `seq`, because the model's contents of it are unknown to the heads."""
        self.seq_remove(seq, 0)
        one = self._sequences[seq]
        one.n_read, one.tokens, one.states, one.draft_state = 0, [], None, None

    def copied(self, source: int, target: int) -> None:
        """Record that the model has copied `source` to the empty `target`."""
        self.forget(target)
        one = self._sequences[source]
        self.seq_copy(source, target)
        self._sequences[target] = _HeadsSequence(one.n_read, list(one.tokens), one.states)

    # ---- drafts

    def ready(self, seq: int, pos: int) -> bool:
        one = self._sequences[seq]
        return not self._failed and one.end == pos and one.states is not None

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode one token of each sequence, after the model's tokens or after the last draft token."""
        runs = [self._run(entry) for entry in entries]
        if not self._decode(runs):
            return False
        context = self._open()
        for entry, output in zip(entries, self._outputs, strict=True):
            one = self._sequences[entry.seq]
            if one.draft_state is None:
                one.n_read, one.tokens = one.end, []
            row = _ext.llama_get_embeddings_nextn_ith(context, output)
            if not row:
                raise InternalError("the library has no hidden state after a draft token")
            one.draft_state = np.ctypeslib.as_array(row, (1, self._n_embd)).copy()
        return True

    def _run(self, entry: BatchEntry) -> tuple[BatchEntry, Rows]:
        one = self._sequences[entry.seq]
        if one.draft_state is not None:
            return BatchEntry(entry.seq, entry.pos, entry.tokens, n_outputs=1), one.draft_state
        if one.states is None or one.end != entry.pos:
            raise InternalError(f"sequence {entry.seq} was followed to {one.end}, not to {entry.pos}")
        return BatchEntry(entry.seq, one.n_read, [*one.tokens, *entry.tokens], n_outputs=1), one.before

    def end_draft(self, seqs: Sequence[int]) -> None:
        """Roll back the draft tokens of `seqs`."""
        for seq in seqs:
            one = self._sequences[seq]
            if one.draft_state is not None:
                one.draft_state = None
                if not self.seq_remove(seq, one.n_read):
                    self.forget(seq)

    def _decode(self, runs: Sequence[tuple[BatchEntry, Rows]]) -> bool:
        states = np.concatenate([before for _, before in runs])
        if len(states) > len(self._states):
            raise InternalError(
                f"a batch of {len(states)} tokens for MTP heads; at most {len(self._states)} are possible"
            )
        self._states[: len(states)] = states
        return super().decode([run for run, _ in runs])
