"""Interpolate the averaged weights of a checkpoint and its continuation: `average.py --help`.

Training for a new ability loses some of the old ones. Weights between the two checkpoints keep both (Wortsman et al.
2022, "Robust fine-tuning of zero-shot models").
"""

import argparse
from pathlib import Path

import torch

HERE = Path(__file__).parent


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--before", default="talk", help="name of the checkpoint before the training")
    parser.add_argument("--after", default="any", help="name of the checkpoint after the training")
    parser.add_argument("--share", type=float, default=0.7, help="weight of the second checkpoint")
    parser.add_argument("--out", default="demo", help="the checkpoint to write, with the optimizers of the second")
    args = parser.parse_args()
    before, after = (torch.load(args.build / f"{name}.pt", map_location="cpu") for name in (args.before, args.after))
    mean = {name: torch.lerp(before["average"][name], after["average"][name], args.share) for name in after["average"]}
    torch.save(after | {"weights": mean, "average": mean}, args.build / f"{args.out}.pt")


if __name__ == "__main__":
    main()
