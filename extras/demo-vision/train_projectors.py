"""Last stage: train only a projector, first on the embeddings of the tables, then on the model's answers."""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from audio import MAX_SECONDS, Sound, beep, speak
from audio_encoder import TOKENS, AudioEncoder
from audio_encoder import Shape as AudioShape
from contents import HEARD_SLOTS, N_SLOTS
from encoder import Encoder, Shape
from images import UNDRAWN, Picture, draw
from label_embeddings import N_TOKENS, Tables, conversation, spoken
from language import demo_network
from questions import abilities, question
from torch import Tensor
from torch.nn import functional as F
from train_audio import by_seconds

BUILD = Path(__file__).parent / "build"
MIXTURE = ("word",) * 8 + ("shapes",) * 6 + ("digit",) * 4 + ("bars",) * 2 + ("rising", "falling")


@torch.no_grad()
def seen(encoder: Encoder, n: int, rng: Random) -> tuple[Tensor, list[Picture]]:
    """Return the hidden states of n images, (image, token, dim), and their contents."""
    hidden: list[Tensor] = []
    pictures: list[Picture] = []
    for _ in range(0, n, 64):
        some = [draw(rng, rng.choice(MIXTURE), plain_share=1) for _ in range(64)]
        with torch.autocast("cpu", torch.bfloat16):
            _, found = encoder(torch.stack([torch.tensor(picture.pixels) for picture in some]))
        hidden.append(found.half())
        pictures += [replace(picture, pixels=UNDRAWN) for picture in some]
    return torch.cat(hidden), pictures


@torch.no_grad()
def heard(audio_encoder: AudioEncoder, n: int, rng: Random) -> tuple[Tensor, list[Sound], list[int]]:
    """Return the padded hidden states of n audio clips, (clip, token, dim), their contents and numbers of tokens."""
    hidden: list[Tensor] = []
    sounds: list[Sound] = []
    lengths: list[int] = []
    for _ in range(0, n, 64):
        for some, mel in by_seconds([beep(rng) if rng.random() < 0.6 else speak(rng) for _ in range(64)]):
            found = audio_encoder(mel)
            hidden.append(F.pad(found, (0, 0, 0, MAX_SECONDS * TOKENS - found.shape[1])).half())
            sounds += [replace(sound, samples=None) for sound in some]
            lengths += [found.shape[1]] * len(some)
    return torch.cat(hidden), sounds, lengths


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--audio", action="store_true", help="train the audio projector instead of the image projector")
    parser.add_argument("--samples", type=int, default=4096, help="number of images or audio clips")
    parser.add_argument("--fit-steps", type=int, default=1500)
    parser.add_argument("--answer-steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    state = torch.load(args.build / ("hear.pt" if args.audio else "see.pt"))
    encoder = AudioEncoder(AudioShape(**state["shape"])) if args.audio else Encoder(Shape(**state["shape"]))
    encoder.load_state_dict(state["encoder"])
    rng, started = Random(args.seed), time.monotonic()
    cache = args.build / f"{'heard' if args.audio else 'seen'}-{state['step']}.pt"
    if cache.exists():
        known = torch.load(cache, weights_only=False)
    else:
        if isinstance(encoder, AudioEncoder):
            known = dict(zip(("hidden", "contents", "lengths"), heard(encoder, args.samples, rng), strict=True))
        else:
            known = dict(zip(("hidden", "contents"), seen(encoder, args.samples, rng), strict=True))
        torch.save(known, cache)
    hidden, contents = known["hidden"].float(), known["contents"]
    lengths = known.get("lengths") or [N_TOKENS] * len(contents)
    print(f"{len(contents)} encoded in {time.monotonic() - started:.0f} s", flush=True)
    table, n_slots = ("say-heard.pt", len(HEARD_SLOTS)) if args.audio else ("say.pt", N_SLOTS)
    if not (args.build / table).exists() or not args.fit_steps + args.answer_steps:
        return
    tables = Tables(args.audio)
    tables.load_state_dict(torch.load(args.build / table)["tables"])
    with torch.no_grad():
        wanted = tables(contents)
    parameters = [*encoder.mlp_in.parameters(), *encoder.mlp_out.parameters()]
    optimizer = torch.optim.Adam(parameters)
    n_common = min(lengths)
    for step in range(args.fit_steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (args.fit_steps - step) / (0.7 * args.fit_steps))
        rows = torch.randint(0, len(hidden), (64,))
        tokens = torch.cat([torch.arange(n_slots), torch.randint(n_slots, n_common, (8,))])
        off = (encoder.project(hidden[rows][:, tokens]) - wanted[rows][:, tokens]).square().mean(2)
        loss = off[:, :n_slots].mean() + off[:, n_slots:].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 300 == 0 or step == args.fit_steps - 1:
            print(f"fit {step} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    network, n_right, n_asked, total = demo_network(), 0, 0, 0.0
    optimizer = torch.optim.Adam(parameters)
    for step in range(args.answer_steps):
        n_left = args.answer_steps - step
        optimizer.param_groups[0]["lr"] = 6e-4 * min(1.0, (step + 1) / 10, n_left / args.answer_steps * 2)
        rows = torch.randint(0, len(hidden), (args.batch,)).tolist()
        asked = [question(contents[row], rng.choice(abilities(contents[row])), rng) for row in rows]
        texts = [
            conversation(contents[row], [q], rng.random() < 0.5, lengths[row])
            for row, q in zip(rows, asked, strict=True)
        ]
        with torch.autocast("cpu", torch.bfloat16):
            loss, good = spoken(network, encoder.project(hidden[rows]), texts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        n_right, n_asked, total = n_right + int(good.sum()), n_asked + len(good), total + loss.item()
        if step % 10 == 9 or step == args.answer_steps - 1:
            print(f"say {step + 1} loss {total / 10:.4f} right {n_right / n_asked:.3f}", flush=True)
            n_right, n_asked, total = 0, 0, 0.0
            state["encoder"] = encoder.state_dict()
            out = args.build / ("tuned-heard.pt" if args.audio else "tuned.pt")
            torch.save(state, out.with_suffix(".tmp"))
            out.with_suffix(".tmp").replace(out)


if __name__ == "__main__":
    main()
