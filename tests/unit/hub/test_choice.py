"""Which files a reference means, and which names are refused."""

import pytest

from server.errors import NotFound
from server.hub.cache import is_inside
from server.hub.choice import HubFile, choose
from server.hub.reference import Reference


def files(*names: str) -> list[HubFile]:
    return [HubFile(name) for name in names]


@pytest.mark.parametrize(
    ("names", "tag", "chosen"),
    [
        (["m-F16.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf"], "", ["m-Q4_K_M.gguf"]),
        (["m-F16.gguf", "m-Q8_0.gguf"], "", ["m-Q8_0.gguf"]),
        (["README.md", "m-F16.gguf", "m-BF16.gguf"], "", ["m-F16.gguf"]),
        (["m-F16.gguf", "m-Q8_0.gguf"], "f16", ["m-F16.gguf"]),
        (["m.q8_0.gguf"], "Q8_0", ["m.q8_0.gguf"]),
        (["m-UD-Q4_K_XL.gguf", "m-Q4_K_M.gguf"], "UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        (["mmproj-Q8_0.gguf", "imatrix-Q8_0.gguf", "m-Q2_K.gguf"], "", ["m-Q2_K.gguf"]),
        (
            ["Q8_0/m-Q8_0-00002-of-00002.gguf", "Q8_0/m-Q8_0-00001-of-00002.gguf"],
            "",
            ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"],
        ),
    ],
)
def test_the_quantization_is_chosen_as_llama_server_does(names: list[str], tag: str, chosen: list[str]) -> None:
    assert [file.path for file in choose(files(*names), "a/b", tag).model] == chosen


def test_a_file_is_taken_by_its_name_whatever_the_quantization() -> None:
    found = choose(files("m-Q4_K_M.gguf", "m-F16.gguf"), "a/b", "Q4_K_M", "m-F16.gguf")
    assert [file.path for file in found.model] == ["m-F16.gguf"]


@pytest.mark.parametrize(
    ("names", "tag", "file", "said"),
    [
        (["m-F16.gguf"], "Q4_K_M", "", "no model of the quantization 'Q4_K_M'; its GGUF files: m-F16.gguf"),
        (["m-F16.gguf"], "", "x.gguf", "no GGUF file 'x.gguf'"),
        (["m-F16.gguf", "config.json"], "", "config.json", "no GGUF file 'config.json'"),
        (["README.md"], "", "", "it has no GGUF files"),
        (
            ["m-Q8_0-00001-of-00003.gguf", "m-Q8_0-00003-of-00003.gguf"],
            "",
            "",
            "lacks 1 of the 3 parts",
        ),
        (["m-Q8_0.gguf"], "Q.*", "", "no model of the quantization"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(names: list[str], tag: str, file: str, said: str) -> None:
    with pytest.raises(NotFound, match=r"^'a/b'") as error:
        choose(files(*names), "a/b", tag, file)
    assert said in error.value.message


def test_siblings_are_the_nearest_in_folder_and_quantization() -> None:
    names = ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-Q8_0.gguf", "sub/mmproj-Q4_0.gguf", "mtp-m-Q4_K_M.gguf"]
    siblings = choose(files(*names), "a/b").siblings
    assert {kind: file.path for kind, file in siblings.items()} == {"mmproj": "mmproj-Q8_0.gguf", "mtp": names[-1]}


def test_a_preset_is_all_that_is_meant() -> None:
    found = choose(files("m-Q4_K_M.gguf", "preset.ini"), "a/b")
    assert (found.preset, found.model) == (HubFile("preset.ini"), ())


@pytest.mark.parametrize("text", ["a/b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M", "A_1/b.c-d:UD-IQ2_XXS"])
def test_a_reference_reads_as_it_is_written(text: str) -> None:
    assert str(Reference.parse(text)) == text


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
