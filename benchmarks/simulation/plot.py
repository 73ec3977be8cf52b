"""Draws what `python -m benchmarks.simulation --json FILE` wrote: ``python -m benchmarks.simulation.plot FILE PNG``."""

import json
import sys
from pathlib import Path
from typing import Any

FIGURES = (
    ("hit_rate", "share of prompt tokens not computed", 1.0),
    ("first_token_p99_s", "time to first token, p99, s", 1.0),
    ("gap_p99_ms", "gap between two tokens, p99, ms", 1.0),
    ("requests_per_s", "requests per second and 64 slots", 64.0),
)


def draw(results: list[dict[str, Any]], target: Path) -> None:
    """One panel for each figure, a group of bars for each number of slots."""
    from matplotlib import pyplot  # an extra of its own: `pip install -e .[bench]`

    slots = sorted({result["slots"] for result in results})
    names = list(dict.fromkeys(result["policy"] for result in results))
    figure, panels = pyplot.subplots(1, len(FIGURES), figsize=(15, 3.6), layout="constrained")
    for panel, (key, title, per_slots) in zip(panels, FIGURES, strict=True):
        for i, name in enumerate(names):
            found = {
                r["slots"]: r[key] / (r["slots"] / 64.0 if per_slots > 1 else 1.0)
                for r in results
                if r["policy"] == name
            }
            places = [at + i * 0.8 / len(names) for at, n in enumerate(slots) if n in found]
            panel.bar(places, [found[n] for n in slots if n in found], 0.8 / len(names), label=name)
        panel.set_title(title, fontsize=9)
        panel.set_xticks([at + 0.4 - 0.4 / len(names) for at in range(len(slots))], [f"{n} slots" for n in slots])
    panels[0].legend(fontsize=8)
    figure.savefig(target, dpi=110)


def main() -> None:
    """Read, draw, write."""
    source, target = map(Path, sys.argv[1:3])
    draw([json.loads(line) for line in source.read_text().splitlines()], target)


if __name__ == "__main__":
    main()
