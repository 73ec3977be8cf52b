"""What a file and the settings make of a model."""

from typing import Any

import pytest

from server.engine.runner_api import Pooling
from server.llama.files.gguf_header import GgufHeader
from server.llama.files.roles import Roles, pooling_of, roles
from server.pool.spec import LoadParams

GENERATES, EMBEDS, BOTH = Roles(True, False), Roles(False, True), Roles(True, True)


def header(arch: str = "llama", pooling: int | None = None) -> GgufHeader:
    metadata: dict[str, Any] = {"general.architecture": arch}
    if pooling is not None:
        metadata[f"{arch}.pooling_type"] = pooling
    return GgufHeader(3, metadata, {}, ())


@pytest.mark.parametrize(
    ("file", "native", "expected"),
    [
        (header(), {}, GENERATES),
        (header(pooling=0), {}, GENERATES),
        (header("bert"), {}, EMBEDS),
        (header("bert"), {"embedding": False}, EMBEDS),
        (header(pooling=1), {}, EMBEDS),
        (header(pooling=3), {"embedding": True}, EMBEDS),
        (header(pooling=3), {"embedding": False}, GENERATES),
        (header(), {"embedding": True}, BOTH),
        (header(), {"pooling": "mean"}, BOTH),
        (header(), {"embedding": True, "pooling": "rank"}, EMBEDS),
    ],
)
def test_what_a_model_is_for(file: GgufHeader, native: dict[str, Any], expected: Roles) -> None:
    assert roles(file, LoadParams(**native)) == expected


def test_the_setting_overrides_the_files_pooling() -> None:
    assert pooling_of(header(pooling=1), LoadParams()) is Pooling.MEAN
    assert pooling_of(header(pooling=1), LoadParams(pooling="cls")) is Pooling.CLS
    assert pooling_of(header(), LoadParams()) is Pooling.NONE
