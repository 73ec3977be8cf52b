"""The demo's eyes and ears: libmtmd computes what PyTorch did, and the default configuration answers as recorded.

`models/demo-vision/verify.py` froze the pictures, sounds and questions; `evaluate.py` there scores hundreds.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from server.llama.files.model_file import read_gguf
from tests.real_server import RealServer, llamapool_config

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "models" / "demo-vision"
FROZEN = SCRIPTS / "frozen"
PROJECTOR = ROOT / "models" / "mmproj-demo.gguf"
CASES: list[dict[str, Any]] = json.loads((FROZEN / "cases.json").read_text())
MAX_BYTES = 4_000_000
LEAST_COSINE = 0.999  # of each embedding; the matrices of the file have 8 bits
MAY_TURN_WRONG = 2  # other processors round otherwise


@pytest.fixture(scope="module")
def reader() -> ModuleType:
    """The script that reads through libmtmd."""
    spec = spec_from_file_location("demo_vision_reader", SCRIPTS / "reader.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def demo() -> Iterator[RealServer]:
    """`config/default.yaml` as it ships, on a free port."""
    with llamapool_config(ROOT / "config" / "default.yaml", "-t", "1") as running:
        yield running


def part(file: Path) -> dict[str, Any]:
    data = b64encode(file.read_bytes()).decode()
    if file.suffix == ".wav":
        return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def asked(server: RealServer, messages: list[dict[str, Any]]) -> str:
    reply = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 40})
    text: str = reply["choices"][0]["message"]["content"]
    return text


def about(file: str, question: str) -> dict[str, Any]:
    return {"role": "user", "content": [part(FROZEN / file), {"type": "text", "text": question}]}


def test_it_is_small_and_its_heads_are_not() -> None:
    header = read_gguf("demo", PROJECTOR)
    assert PROJECTOR.stat().st_size <= MAX_BYTES
    for kind in ("vision", "audio"):
        width, n_heads = (header.integer(f"clip.{kind}.{key}") for key in ("embedding_length", "attention.head_count"))
        assert width is not None
        assert n_heads is not None
        assert width // n_heads >= 64


def test_libmtmd_computes_what_pytorch_did(reader: ModuleType) -> None:
    library = reader.Reader(ROOT / "models" / "demo.gguf", PROJECTOR, 1)
    for file, recorded in np.load(FROZEN / "embeddings.npz").items():
        wanted = recorded.astype(np.float32)
        got = library.embeddings((FROZEN / file).read_bytes(), wanted.shape[1])
        assert got.shape == wanted.shape
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
        assert ((got * wanted).sum(1) / lengths).min() > LEAST_COSINE, file


def test_the_default_configuration_answers_as_recorded(demo: RealServer) -> None:
    answers = {case["file"]: asked(demo, [about(case["file"], case["question"])]) for case in CASES}
    wrong = [
        (case["question"], case["wanted"], answers[case["file"]])
        for case in CASES
        if case["right"] and case["wanted"] not in answers[case["file"]]
    ]
    assert len(wrong) <= MAY_TURN_WRONG, wrong


def test_without_a_picture_it_is_the_demo_model(demo: RealServer) -> None:
    assert "Paris" in asked(demo, [{"role": "user", "content": "What is the capital of France?"}])
