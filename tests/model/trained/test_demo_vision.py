"""The demo's eyes and ears: libmtmd computes what PyTorch did, and the default configuration answers as recorded.

`extras/demo-vision/verify.py` froze the pictures, sounds and questions; `evaluate.py` there scores hundreds.
"""

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.real_server import RealServer

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "extras" / "demo-vision"
FROZEN = ROOT / "models" / "demo-vision" / "frozen"
PROJECTOR = ROOT / "models" / "mmproj-demo.gguf"
CASES: list[dict[str, Any]] = json.loads((FROZEN / "cases.json").read_text())
LEAST_COSINE = 0.999  # of each embedding; the matrices of the file have 8 bits
MAY_TURN_WRONG = 2  # other processors round otherwise


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


# In a process of its own: the reader silences the library, for the whole process, by a callback that ends with it.
READ = """
import sys
from pathlib import Path
import numpy as np
from reader import Reader
model, projector, frozen, found, *files = map(Path, sys.argv[1:])
library = Reader(model, projector, 1)
media = {file.name: library.embeddings((frozen / file).read_bytes(), 192) for file in files}
np.savez(found, **media)
"""


def test_libmtmd_computes_what_pytorch_did(tmp_path: Path) -> None:
    recorded = np.load(FROZEN / "embeddings.npz")
    found = tmp_path / "found.npz"
    paths = (ROOT / "models" / "demo.gguf", PROJECTOR, FROZEN, found, *recorded.files)
    subprocess.run([sys.executable, "-c", READ, *map(str, paths)], cwd=SCRIPTS, check=True, timeout=120)
    computed = np.load(found)
    for file in recorded.files:
        wanted, got = recorded[file].astype(np.float32), computed[file]
        assert got.shape == wanted.shape
        lengths = np.linalg.norm(got, axis=1) * np.linalg.norm(wanted, axis=1)
        assert ((got * wanted).sum(1) / lengths).min() > LEAST_COSINE, file


def test_the_default_configuration_answers_as_recorded(default_server: RealServer) -> None:
    answers = {case["file"]: asked(default_server, [about(case["file"], case["question"])]) for case in CASES}
    wrong = [
        (case["question"], case["wanted"], answers[case["file"]])
        for case in CASES
        if case["right"] and case["wanted"] not in answers[case["file"]]
    ]
    assert len(wrong) <= MAY_TURN_WRONG, wrong
