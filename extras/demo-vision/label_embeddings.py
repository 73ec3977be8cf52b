"""First stage: find embeddings with which the frozen demo model names the contents of images and audio.

It needs no pixels or samples: it learns an embedding for each content.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from audio import MAX_SECONDS, Sound
from audio_encoder import TOKENS
from contents import ABSENT, HEARD_SIZES, HEARD_SLOTS, IGNORED, SIZES, SLOTS, labels, letter_labels, undrawn, unheard
from images import N_LETTERS, Picture
from language import demo_network, tokens_of
from network import Network
from questions import Question, abilities, question
from torch import Tensor, nn
from torch.nn import functional as F

BUILD = Path(__file__).parent / "build"
N_TOKENS = 64
NOISE = 0.1  # an encoder does not reach the embeddings exactly
_ASK, _REPLY, _NEXT = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "\n"
# The text that libmtmd puts around audio for this type of projector (mtmd.cpp): plain text for the demo model.
_SOUND = "<|audio_start|>", "<|audio_end|>"

Contents = Picture | Sound


class Tables(nn.Module):
    """Embeddings of contents: a shared one, and one per label of each slot and letter."""

    def __init__(self, hears: bool = False, dim: int = 192, scale: float = 0.2) -> None:
        super().__init__()
        self.places, sizes = (HEARD_SLOTS, HEARD_SIZES) if hears else (SLOTS, SIZES)
        self.base = nn.Parameter(torch.randn(MAX_SECONDS * TOKENS if hears else N_TOKENS, dim) * scale)
        # The last row of each is for contents without this label.
        self.slots = nn.ParameterDict({k: nn.Parameter(torch.randn(n + 1, dim) * scale) for k, n in sizes.items()})
        if not hears:
            self.letters = nn.Parameter(torch.randn(N_LETTERS, ABSENT + 2, dim) * scale)

    def forward(self, contents: Sequence[Contents]) -> Tensor:
        """Return the embeddings, (batch, token, dim)."""
        x = self.base.expand(len(contents), -1, -1).clone()
        found = [labels(each) for each in contents]
        for slot, place in self.places.items():
            absent = len(self.slots[slot]) - 1
            ids = [each[slot] if each[slot] != IGNORED else absent for each in found]
            x[:, place] = x[:, place] + self.slots[slot][torch.tensor(ids)]
        pictures = [each for each in contents if isinstance(each, Picture)]
        if not pictures:
            return x
        letters = [[i if i != IGNORED else ABSENT + 1 for i in letter_labels(picture)] for picture in pictures]
        ids = torch.tensor(letters)
        spelt = torch.stack([self.letters[i][ids[:, i]] for i in range(N_LETTERS)], 1)
        return torch.cat([x[:, :N_LETTERS] + spelt, x[:, N_LETTERS:]], 1)


def answer_tokens(asked: Question, about: Contents) -> list[int]:
    """Return the answer's tokens. A word in an image is spelled letter by letter."""
    word = about.word.lower() if isinstance(about, Picture) else ""
    if not word or asked.ability == "colour":
        return tokens_of(asked.answer + "<|im_end|>")
    at = asked.answer.rindex(word)
    spelt = [token for letter in word[1:] for token in tokens_of(letter)]
    return tokens_of(asked.answer[: at + 1]) + spelt + tokens_of(asked.answer[at + len(word) :] + "<|im_end|>")


Row = tuple[list[int], int, list[int], list[bool]]


def conversation(about: Contents, questions: list[Question], is_first: bool, n_tokens: int) -> Row:
    """Return the tokens before the media, the number of embeddings, the tokens after, and which of these are trained.

    is_first: the media precede the first question; otherwise they follow it.
    """
    opened, closed = map(tokens_of, _SOUND) if isinstance(about, Sound) else ([], [])
    before, after = tokens_of(_ASK), tokens_of(questions[0].text)
    if not is_first:
        before, after = before + after, []
    before, after = before + opened, closed + after
    learnt = [False] * len(after)
    for i, asked in enumerate(questions):
        opening = tokens_of(_REPLY) if i == 0 else tokens_of(_NEXT + _ASK + asked.text + _REPLY)
        answer = answer_tokens(asked, about)
        after, learnt = after + opening + answer, learnt + [False] * len(opening) + [True] * len(answer)
    return before, n_tokens, after, learnt


def assembled(network: Network, embeddings: Tensor, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """Return inputs (batch, token, dim) with the embeddings, and targets, which may be IGNORED."""
    width = max(len(before) + n + len(after) for before, n, after, _ in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    targets = torch.full((len(rows), width), IGNORED)
    places: list[Tensor] = []
    for row, (before, n, after, learnt) in enumerate(rows):
        start = len(before) + n
        ids[row, : len(before)] = torch.tensor(before)
        ids[row, start : start + len(after)] = torch.tensor(after)
        wanted = [token if learn else IGNORED for token, learn in zip(after, learnt, strict=True)]
        targets[row, start - 1 : start - 1 + len(wanted)] = torch.tensor(wanted)
        places.append(row * width + len(before) + torch.arange(n))
    inputs = network.embedding.weight[ids].flatten(0, 1)
    given = torch.cat([each[:n] for each, (_, n, _, _) in zip(embeddings, rows, strict=True)])
    inputs = inputs.index_copy(0, torch.cat(places), given.to(inputs.dtype))
    return inputs.view(len(rows), width, -1), targets


def spoken(network: Network, embeddings: Tensor, rows: list[Row]) -> tuple[Tensor, Tensor]:
    """The loss of the answers, and for each row whether every token of them is the best one."""
    inputs, targets = assembled(network, embeddings, rows)
    learnt = targets != IGNORED
    found = network.logits(network.read(inputs)[learnt]).float()
    best = torch.full_like(targets, IGNORED)
    best[learnt] = found.argmax(1)
    return F.cross_entropy(found, targets[learnt]), ((best == targets) | ~learnt).all(1)


def main() -> None:
    """Train. Continues from the checkpoint if it exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--audio", action="store_true", help="audio instead of images")
    parser.add_argument("--steps", type=int, default=900, help="the step to end at")
    parser.add_argument("--fall", type=float, default=0.5, help="share of the steps at a falling rate")
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--rate", type=float, default=0.015)
    parser.add_argument("--two", type=float, default=0.0, help="share of images with two questions")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    args.build.mkdir(parents=True, exist_ok=True)
    path = args.build / ("say-heard.pt" if args.audio else "say.pt")
    network, tables, step = demo_network(), Tables(args.audio), 0
    optimizer = torch.optim.Adam(tables.parameters())
    if path.exists():
        state = torch.load(path)
        tables.load_state_dict(state["tables"])
        step = state["step"]
        if state["optimizer"]:
            optimizer.load_state_dict(state["optimizer"])
    first, started = step, time.monotonic()
    rng = Random(args.seed + step)
    right: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    total = 0.0
    while step < args.steps:
        about = [unheard(rng) if args.audio else undrawn(rng) for _ in range(args.batch)]
        asked = [
            [question(p, rng.choice(abilities(p)), rng) for _ in range(2 if rng.random() < args.two else 1)]
            for p in about
        ]
        lengths = [TOKENS * rng.randint(1, MAX_SECONDS) if args.audio else N_TOKENS for _ in about]
        rows = [conversation(p, q, rng.random() < 0.5, n) for p, q, n in zip(about, asked, lengths, strict=True)]
        share = min(1.0, (step - first + 1) / 20, (args.steps - step) / (args.steps * args.fall))
        optimizer.param_groups[0]["lr"] = args.rate * share
        with torch.autocast("cpu", torch.bfloat16):
            given = tables(about)
            given = given + NOISE * given.detach().std() * torch.randn_like(given)
            loss, good = spoken(network, given, rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        total += loss.item()
        for questions, is_good in zip(asked, good.tolist(), strict=True):
            ability = questions[0].ability if len(questions) == 1 else "two questions"
            right[ability][0] += is_good
            right[ability][1] += 1
        if step % 25 == 0 or step == args.steps:
            shown = " ".join(f"{ability} {n / of:.2f}" for ability, (n, of) in right.items())
            print(f"step {step} {time.monotonic() - started:.0f} s loss {total / 25:.3f} {shown}", flush=True)
            right.clear()
            total = 0.0
            state = {"tables": tables.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)


if __name__ == "__main__":
    main()
