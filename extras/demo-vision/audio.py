"""Training audio: digits spoken by espeak-ng, and tones; and their mel frames as in libmtmd."""

import io
import subprocess
import wave
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
N_MELS = 64
MAX_SECONDS = 2
PITCHES = ("low", "high")
_WINDOW, _HOP = 400, 160
_DIALECTS = ("en-us", "en-gb", "en-gb-x-rp")
_VOICES = {
    "train": ("", "+m1", "+m2", "+m3", "+m4", "+m6", "+m8", "+f1", "+f2", "+f4", "+f5"),
    "test": ("+m5", "+m7", "+f3"),
}

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Sound:
    """Audio and its contents: a spoken digit, or tones. samples: mono at RATE, None if it is not generated."""

    samples: Samples | None
    digit: int = -1
    count: int = 0
    pitch: str = ""


@cache
def _spoken(digit: int, voice: str, speed: int, pitch: int) -> Samples:
    """Return the digit spoken by espeak-ng, without surrounding silence."""
    command = ["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", str(digit)]
    data = subprocess.run(command, capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(data)) as file:
        rate = file.getframerate()
        pcm = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    at = np.arange(0, len(pcm) - 1, rate / RATE)
    samples = np.interp(at, np.arange(len(pcm)), pcm).astype(np.float32)
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    return samples[loud[0] : loud[-1] + 1]


def _tone(hertz: float, seconds: float) -> Samples:
    t = np.arange(int(seconds * RATE)) / RATE
    edge = np.minimum(1, np.minimum(t, seconds - t) / 0.01)
    return (np.sin(2 * np.pi * hertz * t) * edge).astype(np.float32)


def _placed(pieces: list[Samples], gap: int, rng: Random) -> Samples:
    """Return the pieces in sequence, at a random position within MAX_SECONDS and with random volume and noise."""
    length = sum(map(len, pieces)) + gap * (len(pieces) - 1)
    n_free = MAX_SECONDS * RATE - 2 * _HOP - length  # libmtmd rounds up to whole seconds
    before = rng.randint(0, min(RATE // 2, n_free))
    after = rng.randint(0, min(RATE // 2, n_free - before))
    samples = np.zeros(before + length + after, np.float32)
    at = before
    for piece in pieces:
        samples[at : at + len(piece)] = piece / np.abs(piece).max()
        at += len(piece) + gap
    noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(len(samples), np.float32)
    return samples * rng.uniform(0.1, 0.9) + noise * rng.choice((0.0, 0.0005, 0.003))


def speak(rng: Random, split: str = "train") -> Sound:
    """Return a spoken digit with a voice of the split."""
    digit = rng.randrange(10)
    voice = rng.choice(_DIALECTS) + rng.choice(_VOICES[split])
    pcm = _spoken(digit, voice, rng.choice((120, 150, 175, 200)), rng.choice((30, 45, 60)))
    return Sound(_placed([pcm], 0, rng), digit=digit)


def beep(rng: Random) -> Sound:
    """Return one to four low or high tones."""
    count, pitch = rng.randint(1, 4), rng.choice(PITCHES)
    hertz = rng.uniform(180, 420) if pitch == "low" else rng.uniform(900, 2000)
    tones = [_tone(hertz, rng.uniform(0.12, 0.3))] * count
    return Sound(_placed(tones, int(rng.uniform(0.1, 0.2) * RATE), rng), count=count, pitch=pitch)


def sound(rng: Random, split: str = "train") -> Sound:
    """Return a digit, or less often tones."""
    return speak(rng, split) if rng.random() < 0.6 else beep(rng)


@cache
def _filters() -> NDArray[np.float32]:
    """Return triangular filters of equal area on Slaney's mel scale, (mel, bin)."""

    def hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + np.log(RATE / 2 / 1000) / (np.log(6.4) / 27)
    edges = hertz(np.linspace(0, top, N_MELS + 2))
    bins = np.arange(_WINDOW // 2 + 1) * RATE / _WINDOW
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    area = 2 / (edges[2:] - edges[:-2])[:, None]
    return (np.maximum(0, np.minimum(rising, falling)) * area).astype(np.float32)


def mel_frames(samples: Samples) -> NDArray[np.float32]:
    """Return Whisper's log-mel as libmtmd computes it for "qwen3a", (mel, frame), zero-padded to whole seconds."""
    pad = _WINDOW // 2
    padded = np.concatenate([samples[pad:0:-1], samples, samples[-2 : -pad - 2 : -1]])
    window = 0.5 * (1 - np.cos(2 * np.pi * np.arange(_WINDOW) / _WINDOW))
    frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP] * window
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
    mel = np.log10(np.maximum(_filters() @ power.T, 1e-10))
    mel = (np.maximum(mel, mel.max() - 8) + 4) / 4
    n = len(samples) // _HOP + 1
    whole = np.zeros((N_MELS, -(-n // 100) * 100), np.float32)
    whole[:, : min(n, mel.shape[1])] = mel[:, :n]
    return whole
