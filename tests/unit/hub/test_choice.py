"""Which files a reference means, and which names are refused."""

import pytest

from server.hub.cache import is_inside
from server.hub.choice import HubFile, choose
from server.hub.reference import Reference


def files(*names: str) -> list[HubFile]:
    return [HubFile(name) for name in names]


def test_siblings_are_the_nearest_in_folder_and_quantization() -> None:
    names = ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "sub/mmproj-Q4_0.gguf", "mtp-m-Q4_K_M.gguf"]
    siblings = choose(files(*names), "a/b").siblings
    assert {kind: file.path for kind, file in siblings.items()} == {"mmproj": "mmproj-Q8_0.gguf", "mtp": names[-1]}


def test_a_preset_is_all_that_is_meant() -> None:
    found = choose(files("m-Q4_K_M.gguf", "preset.ini"), "a/b")
    assert (found.preset, found.model) == (HubFile("preset.ini"), ())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a/b/c",
        "../b",
        "a/..",
        "/a/b",
        "a/b:",
        "a/b:c/d",
        "http://127.0.0.1/a",
        "a/b\n",
        "a--b/c",
        "a/b:x:y",
        "a/b?x=1",
        "a%2e/b",
        "a\\b/c",
        "ä/b",
        "a/" + "b" * 300,
        "a/b:" + "q" * 65,
        "a/-b",
        "a/b.",
        "a/b:../c",
    ],
)
def test_what_could_lead_elsewhere_is_no_reference(text: str) -> None:
    with pytest.raises(ValueError, match="owner/name"):
        Reference.parse(text)


@pytest.mark.parametrize(
    "path", ["../x.gguf", "/x.gguf", "a/../x.gguf", "..", "", "a\\x.gguf", "C:x.gguf", "a\0b", "a/ /b", "x" * 2000]
)
def test_a_hubs_names_stay_in_their_folder(path: str) -> None:
    assert not is_inside(path)
