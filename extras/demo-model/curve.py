"""Score checkpoints of several sizes and amounts of training: `python extras/demo-model/curve.py --help`.

Each checkpoint is `NAME[:TOKENS]`: NAME.pt in the build folder, and how many tokens it saw where it doesn't say so.
A checkpoint that the JSON file has already is not scored again.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import llama_cpp
import torch
from evaluate import SAMPLING, frozen, score
from export import export

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"


@dataclass(frozen=True)
class Point:
    """One checkpoint's place on the curve: parameters, steps and tokens seen, the cases of each ability, the scores."""

    name: str
    parameters: int
    steps: int
    tokens: int
    cases: int
    scores: dict[str, float]


def point(build: Path, wanted: str, n_cases: int) -> Point:
    """The checkpoint's averaged weights, through llama.cpp at temperature 0."""
    name, _, tokens = wanted.partition(":")
    state = torch.load(build / f"{name}.pt", map_location="cpu")
    exported = build / f"{name}.curve.gguf"
    export(build / f"{name}.pt", build / "tokenizer.json", exported, name, "f16")
    model = llama_cpp.Llama(str(exported), n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)
    scores = score(model, frozen(n_cases), SAMPLING["greedy"])
    model.close()
    exported.unlink()
    n_parameters = sum(weight.numel() for weight in state["average"].values())
    return Point(name, n_parameters, state["step"], state.get("tokens") or int(tokens), n_cases, scores)


def table(points: list[Point]) -> str:
    """The points as a Markdown table."""
    abilities = [ability for ability in points[0].scores if ability != "stops by itself"]
    lines = ["| parameters | tokens seen | " + " | ".join(abilities) + " |", "|---" * (2 + len(abilities)) + "|"]
    for p in points:
        shares = " | ".join(f"{p.scores[ability]:.0%}" for ability in abilities)
        lines.append(f"| {p.parameters / 1e6:.2f} M | {p.tokens / 1e6:.1f} M | {shares} |")
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--checkpoints", nargs="+", default=["draft", "broad", "demo"], metavar="NAME[:TOKENS]")
    parser.add_argument("--per-ability", type=int, default=20)
    parser.add_argument("--out", type=Path, default=MODELS / "curve.json", help="JSON file, added to")
    args = parser.parse_args()
    known = {entry["name"]: Point(**entry) for entry in json.loads(args.out.read_text())} if args.out.exists() else {}
    for wanted in args.checkpoints:
        name = wanted.partition(":")[0]
        if name not in known or known[name].cases != args.per_ability:
            known[name] = point(args.build, wanted, args.per_ability)
    points = sorted(known.values(), key=lambda p: (p.parameters, p.tokens))
    args.out.write_text(json.dumps([asdict(p) for p in points], indent=2) + "\n")
    print(table(points))


if __name__ == "__main__":
    main()
