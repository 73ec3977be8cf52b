"""A model whose part is written down: behind the engine's protocols, in place of the native library.

A script is a list of lines. The line whose cue stands last in the prompt is what the model says next; so a loop goes on
by what the client sends back (a tool's output has the next cue), and a client that loses something gets stuck.
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
SLOW_S = 0.005  # of a token of somebody who speaks slowly


@dataclass(frozen=True)
class Line:
    """``say`` is an assistant's message in OpenAI's form. It is meant where the prompt has the text ``needs``, and not
    the text ``lacks``."""

    cue: str
    say: Mapping[str, Any]
    needs: str = ""
    lacks: str = ""
    plain: bool = False  # no turn of a chat: the text alone
    repeat: int = 1  # times that its content is said; then slowly, so that somebody can come in between

    def meant(self, prompt: str) -> bool:
        """Whether it may come behind that prompt."""
        return self.needs in prompt and not (self.lacks and self.lacks in prompt)


@dataclass(frozen=True)
class Script:
    """What the model says in a family's words."""

    family: Family
    lines: Sequence[Line]
    otherwise: str = "Fine."

    def answer(self, prompt: str) -> tuple[str, bool]:
        """The text of the model's turn, less what `prompt` has already begun of it; and whether it is said slowly."""
        cued = [(prompt.rfind(line.cue), i) for i, line in enumerate(self.lines) if line.meant(prompt)]
        at, i = max(cued, default=(-1, 0))
        line = self.lines[i] if at >= 0 else Line("", {"content": self.otherwise})
        say = dict(line.say)
        if line.repeat > 1:
            say["content"] = say["content"] * line.repeat
        text = say["content"] if line.plain else self.family.turn(say)
        for n in range(min(len(text), 200), 0, -1):  # a turn that the prompt has opened: thoughts that are switched off
            if prompt.endswith(text[:n]):
                return text[n:], line.repeat > 1
        return text, line.repeat > 1

    @classmethod
    def read(cls, path: Path, family: Family) -> "Script":
        """From a file of JSON: a list of lines."""
        return cls(family, [Line(**line) for line in json.loads(path.read_text(encoding="utf-8"))])


class ScriptedVocab:
    """Bytes, pairs of printable characters (so that prompts are of a usual length), and a family's control tokens."""

    eog: frozenset[int]
    sep = -1
    add_bos = False  # templates write it
    add_eos = False
    add_sep = False
    fim_repo = fim_sep = -1
    quick_bytes = 1 << 20

    def __init__(self, family: Family) -> None:
        printable = [bytes([a, b]) for a in range(32, 127) for b in range(32, 127)]
        plain = [bytes([b]) for b in range(256)] + printable
        self._control = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", *family.control)
        self._pieces = [*plain, *(text.encode() for text in self._control)]
        self._ids = {piece: token for token, piece in enumerate(plain)}
        self._special = {text: len(plain) + i for i, text in enumerate(self._control)}
        self._first_special = len(plain)
        self._cut = re.compile("(" + "|".join(map(re.escape, sorted(self._control, key=len, reverse=True))) + ")")
        self.n_tokens = len(self._pieces)
        self.fim_prefix, self.fim_suffix, self.fim_middle = (self._special[text] for text in self._control[:3])
        self.bos = self._special[family.bos] if family.bos else -1
        self.eog = frozenset(self._special[end] for end in family.ends)
        self.eos = self._special[family.ends[0]]

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """No token is longer than two bytes, but for control tokens."""
        tokens: list[int] = []
        for part in self._cut.split(text) if parse_special else (text,):
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
class Part:
    """What a sequence is about to say, and where in its cells that begins."""

    start: int
    tokens: list[int] = field(default_factory=list)
    slow: bool = False

    def goes_on(self, said: Sequence[int]) -> bool:
        """Whether what stands behind its start is what it has to say."""
        return said == self.tokens[: len(said)]


class ScriptedRunner(FakeRunner):
    """`FakeRunner`, with all that it proves about cells, over a script."""

    def __init__(self, script: Script, vocab: ScriptedVocab, n_ctx_seq: int) -> None:
        super().__init__(n_seq=N_SEQ, n_ctx_seq=n_ctx_seq, n_batch=N_BATCH)
        self.info: RunnerInfo = replace(self.info, turn_ends=vocab.eog)
        self.vocab: Any = vocab
        self.script = script
        self.parts: dict[int, list[Part]] = defaultdict(list)  # a wrong guess begins one that ends with its removal
        self.wanted: list[int] = []  # the next token behind each wanted output

    def decode(self, entries: Sequence[BatchEntry]) -> bool:
        """As the library's; the script is asked once for every turn."""
        assert not self.closed
        if any(entry.pos + len(entry.tokens) > self.info.n_ctx_seq for entry in entries):
            return False
        self.wanted = []
        slow = (entry for entry in entries if any(part.slow for part in self.parts[entry.seq][-1:]))
        time.sleep(SLOW_S * max((len(entry.tokens) for entry in slow), default=0))  # guesses take their time, too
        for entry in entries:
            cells = self.cells[entry.seq]
            assert entry.pos == len(cells), f"position {entry.pos} of a sequence of {len(cells)}"
            cells.extend(entry.tokens)
            self.computed_by[entry.seq].extend([self.adapters_now] * len(entry.tokens))
            self.wanted += [self._behind(entry.seq, n) for n in range(len(cells) - entry.n_outputs + 1, len(cells) + 1)]
        return True

    def _behind(self, seq: int, n: int) -> int:
        cells, parts = self.cells[seq], self.parts[seq]
        begun = (part for part in reversed(parts) if part.start <= n)
        part = next((part for part in begun if part.goes_on(cells[part.start : n])), None)
        if part is None:
            prompt = self.vocab.detokenize(cells[:n]).decode("utf-8", "replace")
            said, slow = self.script.answer(prompt)
            part = Part(n, self.vocab.tokenize(said, add_special=False, parse_special=True), slow)
            parts.append(part)
        told = n - part.start
        return part.tokens[told] if told < len(part.tokens) else self.vocab.eos

    def _draw(self, output: int, sampler: FakeSampler) -> int:
        token = self.wanted[output]
        return self.vocab.bos if sampler.params.ignore_eos and token in self.vocab.eog else token

    def _masked(self, token: int, mask: Mask) -> int:
        """What the script says; else the end, or the least token that is allowed: then a client's loop shows it."""
        bits = bytes(mask)
        every = (token, *sorted(self.vocab.eog), *range(self.vocab.n_tokens))
        allowed: int | None = next((each for each in every if bits[each // 8] >> (each % 8) & 1), None)
        if allowed is None:
            raise InternalError("no token is allowed")
        return allowed

    def logprobs(self, output: int, token: int, n_top: int) -> TokenLogprob:
        one = TokenLogprob(token, self.vocab.piece(token), -0.1)
        return TokenLogprob(token, self.vocab.piece(token), -0.1, (one,) * min(1, n_top))

    def seq_remove(self, seq: int, pos: int) -> bool:
        self.parts[seq] = [part for part in self.parts[seq] if part.start <= pos]
        return super().seq_remove(seq, pos)

    def seq_copy(self, source: int, target: int) -> None:
        self.parts.pop(target, None)
        super().seq_copy(source, target)


class ScriptedLoader(FakeLoader):
    """Loads the same part for every model, whatever file it names."""

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
        facts: dict[str, Any] = {
            "bos_token": family.bos,
            "eos_token": family.ends[0],
            "add_bos": False,
            "chat_template": family.source,
            "n_vocab": vocab.n_tokens,
            "n_ctx_train": self.n_ctx,
        }
        weights.info: ModelInfo = replace(weights.info, **facts)  # type: ignore[misc]
        self.loaded.append(weights)
        return weights
