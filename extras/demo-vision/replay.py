"""Write conversations about images and audio with the published projector's embeddings, to train the language model.

A model whose weights change no longer understands the projector's embeddings. `train.py --seen FILE` of
extras/demo-model mixes these conversations in to prevent that.
"""

import argparse
from pathlib import Path
from random import Random

import torch
from audio import Sound, beep, speak
from images import Picture, draw
from label_embeddings import conversation
from questions import abilities, question
from reader import Reader
from train_projectors import MIXTURE

MODELS = Path(__file__).parents[2] / "models"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODELS / "demo.gguf")
    parser.add_argument("--projector", type=Path, default=MODELS / "mmproj-demo.gguf")
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--audio", type=int, default=800)
    parser.add_argument("--questions", type=int, default=3, help="questions per image or audio")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "build" / "seen.pt")
    args = parser.parse_args()
    rng = Random(18)
    reader = Reader(args.model, args.projector, 1)
    given: list[torch.Tensor] = []
    rows: list[tuple[int, list[int], list[int], list[bool]]] = []
    for i in range(args.images + args.audio):
        about: Picture | Sound
        if i < args.images:
            about = draw(rng, rng.choice(MIXTURE), plain_share=1)
        else:
            about = beep(rng) if rng.random() < 0.5 else speak(rng)
        medium = about.samples if isinstance(about, Sound) else about.pixels
        assert medium is not None
        given.append(torch.from_numpy(reader.embeddings(medium, 192)).half())
        for _ in range(args.questions):
            asked = question(about, rng.choice(abilities(about)), rng)
            before, _, after, learnt = conversation(about, [asked], rng.random() < 0.5, len(given[-1]))
            rows.append((i, before, after, learnt))
    torch.save({"given": given, "rows": rows}, args.out)
    print(len(rows), "conversations about", len(given), "images and audio clips")


if __name__ == "__main__":
    main()
