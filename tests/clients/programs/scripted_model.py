"""A model that follows a script: it implements the engine's protocols instead of the native library.

A script is a list of lines with cues. The model's next reply is the line whose cue occurs last in the prompt. A client
triggers the next line by what it sends, such as a tool's output, so a client that loses text repeats a line.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from server.engine.request import TokenLogprob
from server.engine.runner_api import BatchEntry, Mask, RunnerInfo
from server.errors import InternalError
from server.pool.protocols import ModelInfo
from server.pool.spec import ModelSpec
from tests.clients.programs.families import Family
from tests.support.fakes import FakeLoader, FakeRunner, FakeSampler, FakeWeights

N_BATCH = 4096
N_SEQ = 4
SLOW_TOKEN_S = 0.005  # delay of each token of a slow reply


@dataclass(frozen=True)
class ScriptLine:
    """A reply: an assistant ``message`` in OpenAI's format, for prompts that contain ``needs`` and not ``lacks``."""

    cue: str
    message: Mapping[str, Any]
    needs: str = ""
    lacks: str = ""
    plain: bool = False  # the reply is the text alone, without the markup of a chat turn
    repeat: int = 1  # repetitions of the content; if several, the reply is slow, so that it can be cancelled

    def applies(self, prompt: str) -> bool:
        """Return whether the line may follow `prompt`."""
        return self.needs in prompt and not (self.lacks and self.lacks in prompt)


@dataclass(frozen=True)
class Script:
    """The replies of a model of one family."""

    family: Family
    lines: Sequence[ScriptLine]
    default: str = "Fine."

    def reply(self, prompt: str) -> tuple[str, bool]:
        """Return the rest of the model's turn after `prompt`, which may contain its start; and whether it is slow."""
        cues = [(prompt.rfind(line.cue), i) for i, line in enumerate(self.lines) if line.applies(prompt)]
        at, i = max(cues, default=(-1, 0))
        line = self.lines[i] if at >= 0 else ScriptLine("", {"content": self.default})
        message = dict(line.message)
        if line.repeat > 1:
            message["content"] = message["content"] * line.repeat
        text = message["content"] if line.plain else self.family.turn(message)
        for n in range(min(len(text), 200), 0, -1):  # a prompt that disables reasoning contains empty reasoning
            if prompt.endswith(text[:n]):
                return text[n:], line.repeat > 1
        return text, line.repeat > 1

    @classmethod
    def read(cls, path: Path, family: Family) -> "Script":
        """Read the lines from a JSON file."""
        return cls(family, [ScriptLine(**line) for line in json.loads(path.read_text(encoding="utf-8"))])


class ScriptedVocab:
    """Bytes, pairs of printable characters (for a realistic number of tokens), and a family's control tokens."""

    eog: frozenset[int]
    sep = -1
    add_bos = False  # templates contain it
    add_eos = False
    add_sep = False
    fim_repo = fim_sep = -1
    quick_bytes = 1 << 20
    max_token_bytes = 0

    def __init__(self, family: Family) -> None:
        printable = [bytes([a, b]) for a in range(32, 127) for b in range(32, 127)]
        plain = [bytes([b]) for b in range(256)] + printable
        self._control = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", *family.control)
        self._pieces = [*plain, *(text.encode() for text in self._control)]
        self._ids = {piece: token for token, piece in enumerate(plain)}
        self._special = {text: len(plain) + i for i, text in enumerate(self._control)}
        self._first_special = len(plain)
        longest_first = sorted(self._control, key=len, reverse=True)
        self._control_pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        self.n_tokens = len(self._pieces)
        self.fim_prefix, self.fim_suffix, self.fim_middle = (self._special[text] for text in self._control[:3])
        self.bos = self._special[family.bos] if family.bos else -1
        self.eog = frozenset(self._special[end] for end in family.ends)
        self.eos = self._special[family.ends[0]]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return pairs of characters where possible, otherwise bytes; and control tokens if `parse_special`."""
        tokens: list[int] = []
        for part in self._control_pattern.split(text) if parse_special else (text,):
            if parse_special and part in self._special:
                tokens.append(self._special[part])
            else:
                tokens += self._plain(part.encode("utf-8", "surrogatepass"))
        return tokens

    def _plain(self, raw: bytes) -> list[int]:
        tokens: list[int] = []
        at = 0
        while at < len(raw):
            pair = self._ids.get(raw[at : at + 2]) if at + 2 <= len(raw) else None
            tokens.append(raw[at] if pair is None else pair)
            at += 1 if pair is None else 2
        return tokens

    def piece(self, token: int, *, special: bool = True) -> bytes:
        return self._pieces[token] if special or token < self._first_special else b""

    def detokenize(self, tokens: Sequence[int], *, special: bool = True) -> bytes:
        if special:
            return b"".join(map(self._pieces.__getitem__, tokens))
        return b"".join(self.piece(token, special=False) for token in tokens)


@dataclass
class Turn:
    """The scripted tokens of a sequence, and the position of the first one."""

    start: int
    tokens: list[int] = field(default_factory=list)
    is_slow: bool = False

    def matches(self, cells: Sequence[int]) -> bool:
        """Return whether `cells`, which follow the start, are the first tokens of the turn."""
        return cells == self.tokens[: len(cells)]


class ScriptedRunner(FakeRunner):
    """`FakeRunner`, with its checks of cells, that samples the tokens of a script."""

    def __init__(self, script: Script, vocab: ScriptedVocab, n_ctx_seq: int) -> None:
        super().__init__(n_seq=N_SEQ, n_ctx_seq=n_ctx_seq, n_batch=N_BATCH)
        self.info: RunnerInfo = replace(self.info, turn_ends=vocab.eog)
        self.vocab: Any = vocab
        self.script = script
        self.turns: dict[int, list[Turn]] = defaultdict(list)  # a rejected draft token starts one that its removal ends
        self.next_tokens: list[int] = []  # after each requested output

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """Decode like the library. The script is evaluated once for each turn."""
        assert not self.closed
        if any(entry.pos + len(entry.tokens) > self.info.n_ctx_seq for entry in entries):
            return False
        self.next_tokens = []
        slow = (entry for entry in entries if any(turn.is_slow for turn in self.turns[entry.seq][-1:]))
        time.sleep(SLOW_TOKEN_S * max((len(entry.tokens) for entry in slow), default=0))  # draft tokens are slow, too
        for entry in entries:
            cells = self.cells[entry.seq]
            assert entry.pos == len(cells), f"position {entry.pos} in a sequence of {len(cells)} tokens"
            cells.extend(entry.tokens)
            self.computed_by[entry.seq].extend([self.adapters_now] * len(entry.tokens))
            ends = range(len(cells) - entry.n_outputs + 1, len(cells) + 1)
            self.next_tokens += [self._next_token(entry.seq, n) for n in ends]
        return True

    def _next_token(self, seq: int, n: int) -> int:
        """Return the scripted token after the first `n` cells of a sequence."""
        cells, turns = self.cells[seq], self.turns[seq]
        started = (turn for turn in reversed(turns) if turn.start <= n)
        turn = next((turn for turn in started if turn.matches(cells[turn.start : n])), None)
        if turn is None:
            prompt = self.vocab.detokenize(cells[:n]).decode("utf-8", "replace")
            text, is_slow = self.script.reply(prompt)
            turn = Turn(n, self.vocab.tokenize(text, add_special=False, parse_special=True), is_slow)
            turns.append(turn)
        at = n - turn.start
        return turn.tokens[at] if at < len(turn.tokens) else self.vocab.eos

    def _draw(self, output: int, sampler: FakeSampler) -> int:
        token = self.next_tokens[output]
        return self.vocab.bos if sampler.params.ignore_eos and token in self.vocab.eog else token

    def _masked(self, token: int, mask: Mask) -> int:
        """Return the first allowed token: the scripted one, an end token, or the lowest id, with which a step fails."""
        bits = bytes(mask)
        candidates = (token, *sorted(self.vocab.eog), *range(self.vocab.n_tokens))
        allowed: int | None = next((each for each in candidates if bits[each // 8] >> (each % 8) & 1), None)
        if allowed is None:
            raise InternalError("no token is allowed")
        return allowed

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        sampled = TokenLogprob(token, self.vocab.piece(token), -0.1)
        return replace(sampled, top=(sampled,) * min(1, n_top))

    def seq_remove(self, seq: int, pos: int) -> bool:
        self.turns[seq] = [turn for turn in self.turns[seq] if turn.start <= pos]
        return super().seq_remove(seq, pos)

    def seq_copy(self, source: int, target: int) -> None:
        self.turns.pop(target, None)
        super().seq_copy(source, target)


class ScriptedLoader(FakeLoader):
    """Loads the same script for every model file."""

    def __init__(self, script: Script, n_ctx: int) -> None:
        super().__init__()
        self.script = script
        self.n_ctx = n_ctx

    def load(self, spec: ModelSpec, progress: Callable[[float], bool]) -> FakeWeights:
        progress(1.0)
        family = self.script.family
        vocab = ScriptedVocab(family)
        weights = FakeWeights(spec, lambda: ScriptedRunner(self.script, vocab, self.n_ctx))
        weights.vocab = vocab  # type: ignore[assignment]
        metadata: dict[str, Any] = {
            "bos_token": family.bos,
            "eos_token": family.ends[0],
            "add_bos": False,
            "chat_template": family.source,
            "n_vocab": vocab.n_tokens,
            "n_ctx_train": self.n_ctx,
        }
        weights.info: ModelInfo = replace(weights.info, **metadata)  # type: ignore[misc]
        self.loaded.append(weights)
        return weights
