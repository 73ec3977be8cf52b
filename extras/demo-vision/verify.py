"""Compare an export with PyTorch, and store images, audio and PyTorch's embeddings for the tests."""

import argparse
import json
import wave
from pathlib import Path
from random import Random
from typing import Any

import audio_encoder
import numpy as np
import torch
from audio import RATE, mel_frames, sound
from encoder import Encoder, Shape
from evaluate import Case, cases, is_right, prompt
from images import KINDS, draw
from numpy.typing import NDArray
from PIL import Image
from reader import Array, Reader

HERE = Path(__file__).parent
MODELS = HERE.parents[1] / "models"
SEED = 71_000
PER_ABILITY = 3
LEAST_SEEN, LEAST_HEARD = 0.999, 0.998  # libmtmd's Fourier transform rounds tones without noise differently
RECORDED = ("shape-1", "word-1", "digit-1", "heard-digit-1", "tones-1")


class Original:
    """The encoders in PyTorch with float32."""

    def __init__(self, build: Path) -> None:
        seen = torch.load(build / "tuned.pt", map_location="cpu")
        self.vision = Encoder(Shape(**seen["shape"]))
        self.vision.load_state_dict(seen["encoder"])
        heard = torch.load(build / "tuned-heard.pt", map_location="cpu")
        self.audio = audio_encoder.AudioEncoder(audio_encoder.Shape(**heard["shape"]))
        self.audio.load_state_dict(heard["encoder"])

    @torch.no_grad()
    def embeddings(self, medium: Array) -> NDArray[np.float32]:
        """Return the embeddings of an image or audio, (token, dim)."""
        if medium.ndim == 1:
            frames = torch.from_numpy(mel_frames(medium.astype(np.float32)))
            return self.audio.project(self.audio(frames[None]))[0].numpy()
        return self.vision.project(self.vision(torch.from_numpy(medium.copy())[None])[1])[0].numpy()


def cosine(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Return the lowest cosine of two sequences of embeddings, token by token."""
    return float(((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))).min())


def _write(case: Case, stem: Path) -> Path:
    """Write the image or audio to a file and return its path."""
    if case.medium.ndim == 3:
        path = stem.with_suffix(".png")
        Image.fromarray(case.medium).save(path, optimize=True)
        return path
    path = stem.with_suffix(".wav")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((case.medium * 32767).astype("<i2").tobytes())
    return path


def freeze(original: Original, reader: Reader, folder: Path) -> None:
    """Write images and audio with questions, the current answers, and some embeddings."""
    folder.mkdir(exist_ok=True)
    rows: list[dict[str, str | bool]] = []
    recorded: dict[str, NDArray[np.float16]] = {}
    for ability, chosen in cases(PER_ABILITY, SEED).items():
        for i, case in enumerate(chosen):
            path = _write(case, folder / f"{ability.replace(' ', '-')}-{i + 1}")
            right = is_right(case.asked, reader.answer(prompt(case.asked, True), path.read_bytes()))
            rows.append({"file": path.name, "question": case.asked.text, "wanted": case.asked.wanted, "right": right})
            if path.stem in RECORDED:
                recorded[path.name] = original.embeddings(case.medium).astype(np.float16)
    lines = ",\n".join(json.dumps(row) for row in rows)
    (folder / "cases.json").write_text(f"[\n{lines}\n]\n")
    arrays: Any = recorded  # numpy's types take them for options
    np.savez_compressed(folder / "embeddings.npz", **arrays)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=HERE / "build")
    parser.add_argument("--model", type=Path, default=MODELS / "demo.gguf")
    parser.add_argument("--projector", type=Path, default=MODELS / "mmproj-demo.gguf")
    parser.add_argument("--freeze", type=Path, help="folder for the images and audio of the tests")
    args = parser.parse_args()
    original, reader = Original(args.build), Reader(args.model, args.projector)
    rng = Random(SEED)
    pictures: list[Array] = [draw(rng, kind).pixels for kind in KINDS * 4]
    sounds: list[Array] = [heard for _ in range(24) if (heard := sound(rng).samples) is not None]
    for media, floor in ((pictures, LEAST_SEEN), (sounds, LEAST_HEARD)):
        pairs = [(original.embeddings(medium), reader.embeddings(medium, 192)) for medium in media]
        assert all(wanted.shape == got.shape for wanted, got in pairs), "another number of embeddings"
        least = min(cosine(wanted, got) for wanted, got in pairs)
        print(f"embeddings of {len(media)} media: least cosine {least:.5f}")
        assert least > floor, "libmtmd computes something else"
    if args.freeze:
        freeze(original, reader, args.freeze)


if __name__ == "__main__":
    main()
