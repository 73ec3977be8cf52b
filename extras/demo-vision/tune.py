"""Last stage: the projector alone, first to the embeddings of the tables, then to what the model answers."""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import torch
from contents import N_SLOTS
from encoder import Encoder, Shape
from language import demo_network
from pictures import Picture, draw
from questions import abilities, question
from say import N_TOKENS, Tables, conversation, spoken
from torch import Tensor

BUILD = Path(__file__).parent / "build"
MIXTURE = ("word",) * 8 + ("shapes",) * 6 + ("digit",) * 4 + ("bars",) * 2 + ("rising", "falling")


@torch.no_grad()
def seen(encoder: Encoder, n: int, rng: Random, path: Path) -> tuple[Tensor, list[Picture]]:
    """Hidden states of n pictures (picture, token, dim), and what these show; kept in a file."""
    if path.exists():
        kept = torch.load(path, weights_only=False)
        return kept["hidden"].float(), kept["pictures"]
    hidden: list[Tensor] = []
    pictures: list[Picture] = []
    for _ in range(0, n, 64):
        some = [draw(rng, rng.choice(MIXTURE), plain_share=1) for _ in range(64)]
        with torch.autocast("cpu", torch.bfloat16):
            _, found = encoder(torch.stack([torch.tensor(picture.pixels) for picture in some]))
        hidden.append(found.half())
        pictures += [replace(picture, pixels=None) for picture in some]
    torch.save({"hidden": torch.cat(hidden), "pictures": pictures}, path)
    return torch.cat(hidden).float(), pictures


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD)
    parser.add_argument("--pictures", type=int, default=4096)
    parser.add_argument("--fit-steps", type=int, default=1500)
    parser.add_argument("--say-steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    state = torch.load(args.build / "see.pt")
    encoder = Encoder(Shape(**state["shape"]))
    encoder.load_state_dict(state["encoder"])
    rng, started = Random(args.seed), time.monotonic()
    hidden, pictures = seen(encoder, args.pictures, rng, args.build / f"seen-{state['step']}.pt")
    print(f"{len(pictures)} pictures seen in {time.monotonic() - started:.0f} s", flush=True)
    if not (args.build / "say.pt").exists() or not args.fit_steps + args.say_steps:
        return
    tables = Tables()
    tables.load_state_dict(torch.load(args.build / "say.pt")["tables"])
    with torch.no_grad():
        wanted = tables(pictures)
    parameters = [*encoder.mlp_in.parameters(), *encoder.mlp_out.parameters()]
    optimizer = torch.optim.Adam(parameters)
    for step in range(args.fit_steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * min(1.0, (args.fit_steps - step) / (0.7 * args.fit_steps))
        rows = torch.randint(0, len(hidden), (64,))
        tokens = torch.cat([torch.arange(N_SLOTS), torch.randint(N_SLOTS, N_TOKENS, (8,))])
        off = (encoder.project(hidden[rows][:, tokens]) - wanted[rows][:, tokens]).square().mean(2)
        loss = off[:, :N_SLOTS].mean() + off[:, N_SLOTS:].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 300 == 0 or step == args.fit_steps - 1:
            print(f"fit {step} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    network, n_right, n_asked, total = demo_network(), 0, 0, 0.0
    optimizer = torch.optim.Adam(parameters)
    for step in range(args.say_steps):
        optimizer.param_groups[0]["lr"] = 6e-4 * min(1.0, (step + 1) / 10, (args.say_steps - step) / args.say_steps * 2)
        rows = torch.randint(0, len(hidden), (args.batch,)).tolist()
        about = [pictures[row] for row in rows]
        asked = [question(picture, rng.choice(abilities(picture)), rng) for picture in about]
        texts = [conversation(p, [q], rng.random() < 0.5, N_TOKENS) for p, q in zip(about, asked, strict=True)]
        with torch.autocast("cpu", torch.bfloat16):
            loss, good = spoken(network, encoder.project(hidden[rows]), texts)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        n_right, n_asked, total = n_right + int(good.sum()), n_asked + len(good), total + loss.item()
        if step % 10 == 9 or step == args.say_steps - 1:
            print(f"say {step + 1} loss {total / 10:.4f} right {n_right / n_asked:.3f}", flush=True)
            n_right, n_asked, total = 0, 0, 0.0
            state["encoder"] = encoder.state_dict()
            torch.save(state, args.build / "tuned.tmp")
            (args.build / "tuned.tmp").replace(args.build / "tuned.pt")


if __name__ == "__main__":
    main()
