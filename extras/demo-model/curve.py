"""Score checkpoints of several sizes and amounts of training: `python extras/demo-model/curve.py --help`.

Each checkpoint is `NAME[:TOKENS]`: NAME.pt in the build folder, and the number of trained tokens if it does not contain
it. Checkpoints in the JSON file are not scored again.
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
    """A checkpoint's point on the curve: parameters, steps, trained tokens, cases per ability, scores."""

    name: str
    parameters: int
    steps: int
    tokens: int
    cases: int
    scores: dict[str, float]


def point(build: Path, wanted: str, n_cases: int) -> Point:
    """Score the checkpoint's averaged weights with llama.cpp at temperature 0."""
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
    """Return the points as a Markdown table."""
    abilities = [ability for ability in points[0].scores if ability != "stops by itself"]
    lines = ["| parameters | tokens seen | " + " | ".join(abilities) + " |", "|---" * (2 + len(abilities)) + "|"]
    for p in points:
        shares = " | ".join(f"{p.scores[ability]:.0%}" for ability in abilities)
        lines.append(f"| {p.parameters / 1e6:.2f} M | {p.tokens / 1e6:.1f} M | {shares} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--checkpoints", nargs="+", default=["draft", "broad", "demo"], metavar="NAME[:TOKENS]")
    parser.add_argument("--per-ability", type=int, default=20)
    parser.add_argument("--out", type=Path, default=MODELS / "curve.json", help="JSON file to extend")
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
