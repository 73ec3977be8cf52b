"""Second stage: train the image encoder on labels of the contents and on their embeddings."""

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import torch
from contents import ABSENT, IGNORED, N_SLOTS, OTHERS, SIZES, SLOTS, labels, letter_labels
from encoder import SHAPE, Encoder, Shape
from images import ALPHABET, N_LETTERS, Picture, draw
from label_embeddings import Tables
from torch import Tensor, nn
from torch.nn import functional as F
from training import Training

BUILD = Path(__file__).parent / "build"
HALVES = 2  # of a patch, from left to right; each has the label of its letter


def letter_map(picture: Picture, side: int, patch: int) -> tuple[list[int], list[int]]:
    """Return for each half of each patch the letter and its position in the word."""
    letters = np.full((side, side, HALVES), ABSENT)
    orders = np.full((side, side, HALVES), N_LETTERS)
    for order, (letter, left, top, right, bottom) in enumerate(picture.letters):
        for row in range(side):
            if min(bottom, (row + 1) * patch) - max(top, row * patch) < 3:
                continue
            for column in range(side * HALVES):
                if left <= (column + 0.5) * patch / HALVES < right:
                    letters[row, column // HALVES, column % HALVES] = ALPHABET.index(letter)
                    orders[row, column // HALVES, column % HALVES] = order
    return letters.ravel().tolist(), orders.ravel().tolist()


@dataclass(frozen=True)
class Batch:
    """Images and their labels.

    embeddings: the targets, (batch, token, dim). wanted: labels of the slots, (batch). letters: (batch, 6).
    letter_map, order_map: (batch, token, HALVES). kept: the patches to use, (batch, token); None = all.
    """

    pixels: Tensor
    embeddings: Tensor
    wanted: dict[str, Tensor]
    letters: Tensor
    letter_map: Tensor
    order_map: Tensor
    kept: Tensor | None = None


@torch.no_grad()
def collated(pictures: list[Picture], tables: Tables, shape: Shape, rng: Random | None = None) -> Batch:
    """Return the batch of some images. With rng, only a part of the patches is used, which needs images of words."""
    side = shape.image // shape.patch
    maps = [letter_map(picture, side, shape.patch) for picture in pictures]
    found = [labels(picture) for picture in pictures]
    letter_maps = torch.tensor([letters for letters, _ in maps]).view(len(maps), -1, HALVES)
    order_maps = torch.tensor([orders for _, orders in maps]).view(len(maps), -1, HALVES)
    embeddings, kept = tables(pictures), None
    if rng is not None:
        kept = torch.tensor(_kept(pictures, shape, rng))
        embeddings = embeddings.gather(1, kept[:, :, None].expand(-1, -1, embeddings.shape[2]))
        chosen = kept[:, :, None].expand(-1, -1, HALVES)
        letter_maps, order_maps = letter_maps.gather(1, chosen), order_maps.gather(1, chosen)
    return Batch(
        torch.from_numpy(np.stack([picture.pixels for picture in pictures])),
        embeddings,
        {slot: torch.tensor([each[slot] for each in found]) for slot in SLOTS},
        torch.tensor([letter_labels(picture) for picture in pictures]),
        letter_maps,
        order_maps,
        kept,
    )


def _kept(pictures: list[Picture], shape: Shape, rng: Random) -> list[list[int]]:
    """Return equally many patches of each image: those of slots, those in the rows of the word, and random others."""
    side = shape.image // shape.patch
    found: list[list[int]] = []
    others: list[list[int]] = []
    for picture in pictures:
        top = min(box[2] for box in picture.letters) // shape.patch
        bottom = max(box[4] for box in picture.letters) / shape.patch
        rest = range(N_SLOTS, side * side)
        found.append([*range(N_SLOTS), *(i for i in rest if top <= i // side < bottom)])
        others.append([i for i in rest if not top <= i // side < bottom])
    n_most = max(map(len, found))
    return [[*own, *rng.sample(rest, n_most - len(own))] for own, rest in zip(found, others, strict=True)]


class Readers(nn.Module):
    """Linear maps from hidden states to labels of slots, letters, and the letters of each patch."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.slots = nn.ModuleDict({slot: nn.Linear(shape.dim, size) for slot, size in SIZES.items()})
        self.letters = nn.ModuleList(nn.Linear(shape.dim, ABSENT + 1) for _ in range(N_LETTERS))
        self.letter_map = nn.Linear(shape.dim, HALVES * (ABSENT + 1))
        self.order_map = nn.Linear(shape.dim, HALVES * (N_LETTERS + 1))

    def read(self, hidden: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return scores of the slots' labels and of the letters (batch, 6, 27), from the last hidden states."""
        slots = {slot: reader(hidden[:, SLOTS[slot]]) for slot, reader in self.slots.items()}
        return slots, torch.stack([reader(hidden[:, i]) for i, reader in enumerate(self.letters)], 1)


def _loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """Return the mean cross-entropy of the rows with a label; 0 without any."""
    total = F.cross_entropy(scores.float(), wanted, ignore_index=IGNORED, reduction="sum")
    return total / max(1, int((wanted != IGNORED).sum()))


def _map_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    """Return the cross-entropy, where positions without a letter (the last label) have a weight of 0.2."""
    scores = scores.float().view(*wanted.shape, -1)
    weights = torch.ones(scores.shape[-1])
    weights[-1] = 0.2
    return F.cross_entropy(scores.flatten(0, 2), wanted.flatten(), weights)


def losses(encoder: Encoder, readers: Readers, batch: Batch) -> tuple[dict[str, Tensor], dict[str, tuple[int, int]]]:
    """Return the losses by label, and the numbers of right and of all predictions."""
    wanted, letters = batch.wanted, batch.letters
    early, hidden = encoder(batch.pixels, batch.kept)
    scores, spelt = readers.read(hidden)
    found = {slot: _loss(scores[slot], wanted[slot]) for slot in SLOTS}
    off = (encoder.project(hidden).float() - batch.embeddings).square().mean(2)
    found["embeddings"] = 5 * (off[:, :N_SLOTS].mean() + off[:, N_SLOTS:].mean())
    found["letters"] = 3 * _loss(spelt.flatten(0, 1), letters.flatten())
    is_word = letters[:, 0] != IGNORED
    if is_word.any():
        found["letter map"] = _map_loss(readers.letter_map(early[is_word]), batch.letter_map[is_word])
        found["order map"] = _map_loss(readers.order_map(early[is_word]), batch.order_map[is_word])
    right: dict[str, tuple[int, int]] = {}
    for slot in SLOTS:
        known = wanted[slot] != IGNORED
        right[slot] = int((scores[slot].argmax(1) == wanted[slot])[known].sum()), int(known.sum())
    same = (spelt.argmax(2) == letters)[is_word]
    right["letter"] = int(same.sum()), same.numel()
    right["word"] = int(same.all(1).sum()), len(same)
    return found, right


def main() -> None:
    """Train. Continues from the checkpoint if it exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--minutes", type=float, help="end after these minutes instead of at a step")
    parser.add_argument("--fall", type=float, default=0.25, help="share of the steps at a falling rate")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.004, help="of the matrices (Muon)")
    parser.add_argument("--plain-share", type=float, default=0.0, help="share of words that are drawn plain")
    parser.add_argument("--word-share", type=float, default=0.75, help="share of images of words")
    parser.add_argument(
        "--part-share", type=float, default=0.75, help="share of batches of words with a part of the patches"
    )
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    args.build.mkdir(parents=True, exist_ok=True)
    encoder, readers, tables = Encoder(SHAPE), Readers(SHAPE), Tables()
    tables.load_state_dict(torch.load(args.build / "say.pt")["tables"])
    print(f"{sum(p.numel() for p in encoder.parameters()):,} parameters", flush=True)
    training = Training(args.build / "see.pt", encoder, readers, args.rate)
    rates = args.rate, 0.1 * args.rate
    rng = Random(args.seed + training.step)
    started = time.monotonic()
    right: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
    sums: defaultdict[str, float] = defaultdict(float)
    n = 0
    left = 1.0
    step = first = training.step
    while left > 0:
        n_words = int(args.batch * args.word_share)
        words = [draw(rng, "word", plain_share=args.plain_share) for _ in range(n_words)]
        others = [draw(rng, rng.choice(OTHERS)) for _ in range(args.batch - n_words)]
        in_part = rng.random() < args.part_share
        left = 1 - ((time.monotonic() - started) / 60 / args.minutes if args.minutes else (step + 1) / args.steps)
        with torch.autocast("cpu", torch.bfloat16):
            found, counted = losses(encoder, readers, collated(words, tables, encoder.shape, rng if in_part else None))
            more, others_counted = losses(encoder, readers, collated(others, tables, encoder.shape))
        (sum(found.values()) + sum(more.values())).backward()
        share = max(0.0, min(1.0, (step + 1) / 100, left / args.fall))
        with torch.autocast("cpu", torch.bfloat16):  # Muon's products
            training.update(rates, share)
        step, n = training.step, n + 1
        for name, (good, all_) in (*counted.items(), *others_counted.items()):
            right[name][0] += good
            right[name][1] += all_
        for name, loss in (*found.items(), *more.items()):
            sums[name] += loss.item()
        if step % 50 == 0:
            shown = " ".join(f"{name} {good / max(1, all_):.2f}" for name, (good, all_) in right.items())
            shown += " | " + " ".join(f"{name} {value / n:.2f}" for name, value in sums.items())
            print(
                f"step {step} {(time.monotonic() - started) / (step - first):.2f} s rate {share:.2f} {shown}",
                flush=True,
            )
            right, n, sums = defaultdict(lambda: [0, 0]), 0, defaultdict(float)
        training.save(now=left <= 0)


if __name__ == "__main__":
    main()
