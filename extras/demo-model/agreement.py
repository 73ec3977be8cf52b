"""Measure how often the draft model's best token is that of the demo model: `agreement.py --help`."""

import argparse
from itertools import islice
from pathlib import Path

import torch
from batches import encoded
from corpus import stream
from network import Network, Shape
from tokenizer import tokenizer_at

HERE = Path(__file__).parent
SEED = 20_000


def network_of(checkpoint: Path) -> Network:
    """Return the network with its averaged weights."""
    state = torch.load(checkpoint, map_location="cpu")
    network = Network(Shape(**state["shape"]))
    network.load_state_dict(state["average"])
    return network


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--checkpoint", default="demo")
    parser.add_argument("--draft", default="draft")
    parser.add_argument("--samples", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    demo, draft = (network_of(args.build / f"{name}.pt") for name in (args.checkpoint, args.draft))
    tokenizer = tokenizer_at(args.build / "tokenizer.json")
    n_same = n_tokens = 0
    with torch.no_grad():
        for sample in islice(stream(SEED, "test"), args.samples):
            ids, learnt = encoded(tokenizer, sample)
            inputs, answers = torch.tensor([ids[:-1]]), torch.tensor(learnt[1:]) > 0
            best, drafted = (network.logits(network(inputs))[0].argmax(-1) for network in (demo, draft))
            n_same += int((best == drafted)[answers].sum())
            n_tokens += int(answers.sum())
    print(f"the draft's best token is the model's at {n_same / n_tokens:.1%} of {n_tokens:,} answer tokens")


if __name__ == "__main__":
    main()
