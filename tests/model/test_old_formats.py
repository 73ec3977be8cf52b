"""This version reads the files of every earlier one (`tests/model/formats`), or names the reason why not."""

import json
import shutil
from pathlib import Path

import pytest

from tests.model.formats import FACTS, FOLDER, SLOT, complete, library, serve

VERSIONS = sorted(path.parent.name for path in FOLDER.glob(f"*/{FACTS}"))
MAX_BYTES = 200_000
"""Of a version's folder: it stays in the history for good."""


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_an_earlier_version_are_read_or_refused_with_the_reason(version: str, tmp_path: Path) -> None:
    folder = tmp_path / version
    shutil.copytree(FOLDER / version, folder)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < MAX_BYTES
    facts = json.loads((folder / FACTS).read_text())
    with serve(folder) as server:
        reply = complete(server)
        assert reply["content"] == facts["content"]
        assert (reply["timings"]["cache_n"] > 50) is (facts["library"] == library())
        assert server.get(f"/v1/responses/{facts['response']['id']}") == facts["response"]
        (item,) = server.get(f"/v1/conversations/{facts['conversation']}/items")["data"]
        assert item["content"][0]["text"] == "Remember me."
        usage = server.get("/v1/usage?start=2026-01-01")["data"]
        assert sum(row["requests"] for row in usage) == facts["n_requests"] + 1
        restored = server.request("POST", "/slots/0?action=restore", {"filename": SLOT})
        if restored.status == 200:
            assert restored.json()["n_restored"] == facts["n_saved"]
            assert complete(server)["timings"]["cache_n"] > 50
        else:
            assert facts["library"] != library()
            assert "its state has the version" in restored.json()["error"]["message"]


def test_there_are_files() -> None:
    assert VERSIONS
