"""Train the demo model: `python extras/demo-model/train.py --help`."""

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch
from batches import Batch, batches
from corpus import MIXES, stream
from muon import Muon
from network import Network, shape_of
from tokenizer import tokenizer_at
from workers import started

BUILD = Path(__file__).parent / "build"


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=BUILD, help="folder of tokenizer and checkpoints")
    parser.add_argument("--name", default="demo", choices=("demo", "draft"), help="which model")
    parser.add_argument("--steps", type=int, default=3000, help="the step to end at")
    parser.add_argument("--minutes", type=float, help="end after these minutes instead of at a step")
    parser.add_argument(
        "--decay-share", type=float, default=0.5, help="share of the steps or minutes with a falling rate"
    )
    parser.add_argument("--micro-batches", type=int, default=4, help="batches of 1536 tokens per step")
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate of the matrices (Muon)")
    parser.add_argument("--save-minutes", type=float, default=3)
    parser.add_argument("--workers", type=int, default=2, help="processes, one per core; 0: in this one")
    parser.add_argument("--seed", type=int, default=1, help="of the corpus; use a new one to continue")
    parser.add_argument("--mix", default="broad", choices=tuple(MIXES), help="mixture of the corpus")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint, if it exists")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true", help="products in bfloat16: faster if the CPU supports it")
    parser.add_argument("--seen", type=Path, help="conversations about images, from extras/demo-vision/replay.py")
    return parser.parse_args()


def optimizers(network: Network, rate: float, bf16: bool) -> list[torch.optim.Optimizer]:
    """Return Muon for the blocks' matrices and AdamW for the embedding and the norms."""
    matrices = [p for p in network.blocks.parameters() if p.ndim == 2]
    rest = [network.embedding.weight, *(p for p in network.parameters() if p.ndim == 1)]
    return [
        Muon(matrices, lr=rate, dtype=torch.bfloat16 if bf16 else torch.float32),
        torch.optim.AdamW(rest, lr=0.15 * rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


class Average:
    """A moving average of the weights: as good as a short decay, and available at any step."""

    def __init__(self, network: Network) -> None:
        self.weights = {name: value.clone() for name, value in network.state_dict().items()}

    @torch.no_grad()
    def update(self, network: Network, step: int) -> None:
        """Move towards the network's weights."""
        share = 1 - min(0.99, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            self.weights[name].lerp_(value, share)


def save(
    path: Path,
    network: Network,
    average: Average,
    optimizers: list[torch.optim.Optimizer],
    step: int,
    n_tokens: int | None = None,
) -> None:
    """Write the checkpoint atomically. n_tokens: number of trained tokens, including padding."""
    state = {
        "shape": asdict(network.shape),
        "weights": network.state_dict(),
        "average": average.weights,
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "step": step,
        "tokens": n_tokens,
    }
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def rate_share(step: int, share_left: float, decay_share: float) -> float:
    """Return the learning rate's share: warm-up, constant, then a linear fall to zero (WSD)."""
    return max(0.0, min(1.0, (step + 1) / 40, share_left / decay_share))


def train(network: Network, data: Iterator[Batch], path: Path, args: argparse.Namespace) -> None:
    """Run the training steps."""
    optims = optimizers(network, args.rate, args.bf16)
    average, step, n_before = Average(network), 0, 0
    if args.resume and path.exists():
        state = torch.load(path)
        network.load_state_dict(state["weights"])
        average.weights, step, n_before = state["average"], state["step"], state.get("tokens") or 0
        if state["optimizers"] is None:  # from a published file: the rate warms up again
            step = 0
        for optimizer, stored in zip(optims, state["optimizers"] or (), strict=bool(state["optimizers"])):
            optimizer.load_state_dict(stored)
    rates = [args.rate, 0.15 * args.rate]
    started_at = saved = time.monotonic()
    n_tokens, shown = 0, 0.0
    with started(network, args.workers, args.compile, args.bf16, args.seen) as workers:
        micro = list(islice(data, args.micro_batches))
        share_left = 1.0 if args.minutes else 1 - step / args.steps
        while share_left > 0:
            workers.submit(micro)
            n_tokens += sum(batch[0].numel() for batch in micro)
            micro = list(islice(data, args.micro_batches))  # while the workers work
            loss = workers.collect(args.micro_batches)
            share = rate_share(step, share_left, args.decay_share)
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            for optimizer, rate in zip(optims, rates, strict=True):
                optimizer.param_groups[0]["lr"] = rate * share
                optimizer.step()
            average.update(network, step)
            step += 1
            shown = loss if shown == 0 else 0.95 * shown + 0.05 * loss
            now = time.monotonic()
            share_left = 1 - ((now - started_at) / 60 / args.minutes if args.minutes else step / args.steps)
            if step % 20 == 0:
                speed = n_tokens / (now - started_at)
                print(f"step {step} loss {shown:.4f} rate {share:.2f} {speed:.0f} tokens/s", flush=True)
            if now - saved > 60 * args.save_minutes or share_left <= 0:
                save(path, network, average, optims, step, n_before + n_tokens)
                saved = now


def main() -> None:
    """Train from the corpus to a checkpoint."""
    args = options()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    args.build.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer_at(args.build / "tokenizer.json")
    network = Network(shape_of(args.name, tokenizer.get_vocab_size()))
    print(f"{sum(p.numel() for p in network.parameters()):,} parameters", flush=True)
    data = batches(stream(args.seed, mix=args.mix), tokenizer, 1536, network.shape.n_ctx, args.seed)
    train(network, data, args.build / f"{args.name}.pt", args)


if __name__ == "__main__":
    main()
