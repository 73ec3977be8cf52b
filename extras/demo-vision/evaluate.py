"""Score the projector on held-out images and audio with libmtmd: `evaluate.py --help`."""

import argparse
import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

from audio import Sound, beep, speak
from images import Picture, draw
from questions import Question, question
from reader import MARKER, Array, Reader

MODELS = Path(__file__).parents[2] / "models"
SEED = 62_000  # another one after each look at the misses
# kinds of images or audio by ability
ABILITIES = {
    "colour": ("shapes",),
    "shape": ("shapes",),
    "count": ("shapes",),
    "digit": ("digit",),
    "word": ("word",),
    "bars": ("bars",),
    "trend": ("rising", "falling"),
    "see": ("shapes", "digit", "word", "bars", "rising", "falling"),
    "heard digit": ("spoken",),
    "tones": ("tones",),
    "pitch": ("tones",),
    "hear": ("spoken", "tones"),
}


@dataclass(frozen=True)
class Case:
    """An image or audio, and a question about it."""

    about: Picture | Sound
    asked: Question

    @property
    def medium(self) -> Array:
        """The pixels or samples for the model."""
        found = self.about.pixels if isinstance(self.about, Picture) else self.about.samples
        assert found is not None
        return found


def _made(kind: str, rng: Random, plain_share: float) -> Picture | Sound:
    if kind == "spoken":
        return speak(rng, "test")
    return beep(rng) if kind == "tones" else draw(rng, kind, "test", plain_share)


def cases(per_ability: int, seed: int = SEED, plain_share: float = 1.0) -> dict[str, list[Case]]:
    """Return new images and audio with held-out words, voices and phrasings. Counts 1 to 4 are equally frequent."""
    found: dict[str, list[Case]] = defaultdict(list)
    for ability, kinds in ABILITIES.items():
        rng = Random(f"{seed} {ability}")
        while len(found[ability]) < per_ability:
            i = len(found[ability])
            about = _made(kinds[i % len(kinds)], rng, plain_share)
            if ability in ("count", "tones") and about.count != 1 + i % 4:
                continue
            found[ability].append(Case(about, question(about, ability, rng, "test")))
    return found


def prompt(asked: Question, is_first: bool) -> str:
    """Return the rendered chat. is_first: the media precede the question; otherwise they follow it."""
    content = MARKER + asked.text if is_first else asked.text + MARKER
    return f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def is_right(asked: Question, written: str) -> bool:
    """Return whether the reply contains the expected words."""
    words, wanted = written.rstrip(".").split(), asked.wanted.split()
    return any(words[i : i + len(wanted)] == wanted for i in range(len(words)))


def score(reader: Reader, by_ability: dict[str, list[Case]], show: int) -> dict[str, float]:
    """Return each ability's share of right answers. Prints the first misses."""
    scores: dict[str, float] = {}
    for ability, chosen in by_ability.items():
        n_right = n_shown = 0
        for i, case in enumerate(chosen):
            written = reader.answer(prompt(case.asked, i % 2 == 0), case.medium)
            right = is_right(case.asked, written)
            n_right += right
            if not right and n_shown < show:
                n_shown += 1
                print(f"  {ability}: {case.asked.text!r} wanted {case.asked.answer!r} wrote {written!r}")
        scores[ability] = n_right / len(chosen)
    return scores


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODELS / "demo.gguf")
    parser.add_argument("--projector", type=Path, default=MODELS / "mmproj-demo.gguf")
    parser.add_argument("--per-ability", type=int, default=100)
    parser.add_argument("--plain-share", type=float, default=1.0, help="share of words that are drawn plain")
    parser.add_argument("--abilities", nargs="+", choices=tuple(ABILITIES), default=list(ABILITIES))
    parser.add_argument("--show", type=int, default=0, help="misses to print per ability")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for the scores")
    args = parser.parse_args()
    reader = Reader(args.model, args.projector, args.threads)
    chosen = cases(args.per_ability, args.seed, args.plain_share)
    scores = score(reader, {ability: chosen[ability] for ability in args.abilities}, args.show)
    for ability, share in scores.items():
        print(f"{ability:>12} {share:7.1%}")
    if args.out:
        args.out.write_text(json.dumps({"cases_per_ability": args.per_ability, **scores}, indent=2) + "\n")


if __name__ == "__main__":
    main()
