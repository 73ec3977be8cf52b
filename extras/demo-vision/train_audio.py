"""Third stage: train the audio encoder on labels of the contents and on their embeddings."""

import argparse
import time
from collections import defaultdict
from pathlib import Path
from random import Random

import numpy as np
import torch
from audio import Sound, mel_frames, sound
from audio_encoder import FRAMES, SHAPE, AudioEncoder
from contents import HEARD_SIZES, HEARD_SLOTS, IGNORED, labels
from label_embeddings import Tables
from torch import Tensor, nn
from torch.nn import functional as F
from training import Training

BUILD = Path(__file__).parent / "build"


def by_seconds(sounds: list[Sound]) -> list[tuple[list[Sound], Tensor]]:
    """Group audio by whole seconds. Returns the groups and their mel frames (batch, mel, frame)."""
    found: dict[int, list[tuple[Sound, np.ndarray]]] = defaultdict(list)
    for each in sounds:
        assert each.samples is not None
        mel = mel_frames(each.samples)
        found[mel.shape[1] // FRAMES].append((each, mel))
    return [
        ([each for each, _ in rows], torch.from_numpy(np.stack([mel for _, mel in rows]))) for rows in found.values()
    ]


def main() -> None:
    """Train. Continues from the checkpoint if it exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--fall", type=float, default=0.5, help="share of the steps at a falling rate")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=0.005, help="of the blocks' matrices (Muon)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    audio_encoder, tables = AudioEncoder(SHAPE), Tables(hears=True)
    tables.load_state_dict(torch.load(args.build / "say-heard.pt")["tables"])
    readers = nn.ModuleDict({slot: nn.Linear(audio_encoder.shape.dim, size) for slot, size in HEARD_SIZES.items()})
    training = Training(args.build / "hear.pt", audio_encoder, readers, args.rate)
    rates = args.rate, 0.3 * args.rate
    rng = Random(args.seed + training.step)
    started = time.monotonic()
    right: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    off = 0.0
    while (step := training.step) < args.steps:
        total = torch.zeros(())
        for heard, mel in by_seconds([sound(rng) for _ in range(args.batch)]):
            hidden = audio_encoder(mel)
            with torch.no_grad():
                wanted = tables(heard)[:, : hidden.shape[1]]
            share = len(heard) / args.batch
            error = (audio_encoder.project(hidden) - wanted).square().mean(2)
            loss = 5 * (error[:, : len(HEARD_SLOTS)].mean() + error[:, len(HEARD_SLOTS) :].mean())
            off += share * loss.item()
            found = [labels(each) for each in heard]
            for slot, place in HEARD_SLOTS.items():
                true = torch.tensor([each[slot] for each in found])
                known = true != IGNORED
                scores = readers[slot](hidden[:, place])[known]
                loss = loss + F.cross_entropy(scores, true[known], reduction="sum") / max(1, int(known.sum()))
                right[slot][0] += int((scores.argmax(1) == true[known]).sum())
                right[slot][1] += int(known.sum())
            total = total + share * loss
        total.backward()
        share = min(1.0, (step + 1) / 50, (args.steps - step) / (args.steps * args.fall))
        training.update(rates, share)
        step += 1
        if step % 50 == 0 or step == args.steps:
            shown = " ".join(f"{slot} {n / max(1, of):.3f}" for slot, (n, of) in right.items())
            print(f"step {step} {time.monotonic() - started:.0f} s {shown} embeddings {off / 50:.3f}", flush=True)
            right.clear()
            off = 0.0
        training.save(now=step == args.steps)


if __name__ == "__main__":
    main()
