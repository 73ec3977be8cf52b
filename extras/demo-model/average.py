"""The mean of two checkpoints' averaged weights, one the other's continuation: `average.py --help`.

What is trained on for a new ability forgets some of the old ones; the weights between the two keep both (Wortsman et
al. 2022, "Robust fine-tuning of zero-shot models").
"""

import argparse
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--before", default="talk", help="name of the checkpoint that the training went on from")
    parser.add_argument("--after", default="any", help="name of the checkpoint that it ended at")
    parser.add_argument("--share", type=float, default=0.7, help="of the second")
    parser.add_argument("--out", default="demo", help="the checkpoint to write, with the optimizers of the second")
    args = parser.parse_args()
    before, after = (torch.load(args.build / f"{name}.pt", map_location="cpu") for name in (args.before, args.after))
    mean = {name: torch.lerp(before["average"][name], after["average"][name], args.share) for name in after["average"]}
    torch.save(after | {"weights": mean, "average": mean}, args.build / f"{args.out}.pt")


if __name__ == "__main__":
    main()
