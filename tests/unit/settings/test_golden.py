"""Command lines, environment variables and YAML files with their results: changed values, warnings, or an error line.

``python -m tests.unit.settings.test_golden`` computes the results in `golden.txt` again. To add a case, append a line
``$ NAME=VALUE ... ARGUMENTS``, and below it lines of a YAML file, each after ``| ``, or of preset.ini, after ``> ``. In
each result, ``=`` precedes changed values, ``!`` an error in the settings, ``?`` one that `check_files` finds, and
``~`` a warning.
"""

import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from server.errors import ConfigError
from server.options.model import ModelSettings
from server.options.table import TABLE
from server.pool.spec import ModelSpec
from server.settings import Settings, check_files, load_settings, model_specs
from tests.conftest import pytest_configure
from tests.support.ggufs import TinyModel, gguf_file

GOLDEN = Path(__file__).parent / "golden.txt"
ECHOES = {"args", "preset", "source", "id", "path"}
"""Fields of a model's spec that repeat the command line."""
FILES = """model m d draft a b c e other eyes p-00001-of-00003 q-00002-of-00003 split/s-00001-of-00002 blind/x/x
folder/one folder/gemma/gemma folder/gemma/mmproj-F16 twice/a twice/a/x
many/one many/two/two many/two/mmproj many/split/s-00001-of-00002 many/split/s-00002-of-00002
many/mmproj-F16 many/mtp-x many/dspark-x many/dflash-x many/only/mmproj"""


def blocks() -> Iterator[list[str]]:
    for block in ("\n" + GOLDEN.read_text(encoding="utf-8").rstrip("\n")).split("\n$")[1:]:
        yield f"${block}".split("\n")


def command(block: list[str]) -> list[str]:
    """Return the lines that are the input of a case."""
    return [line for line in block if line[0] in "$|>"]


def leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Return the values of nested settings or specs by their dotted path."""
    if isinstance(value, BaseModel):
        inner = {name: getattr(value, name) for name in type(value).model_fields}
    elif is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: getattr(value, field.name) for field in fields(value)}
    else:
        return {at: sorted(value) if isinstance(value, frozenset | set) else value}
    dot = f"{at}." if at else ""
    return {name: leaf for key, each in inner.items() for name, leaf in leaves(each, dot + key).items()}


@cache
def defaults() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the values of the server and of the model for ``-m model.gguf``."""
    plain = load_settings(["-m", "model.gguf"], {})
    return leaves(plain.server), leaves(model_specs(plain)[0])


def loaded(lines: list[str]) -> Settings:
    """Return the settings of a case. Raises ConfigError."""
    words, env = shlex.split(lines[0][1:]), {}
    while words and "=" in words[0] and words[0].split("=")[0].isupper():
        name, _, env[name] = words.pop(0).partition("=")
    yaml, preset = ([line[2:] for line in lines[1:] if line[0] == mark] for mark in "|>")
    config = Path("pool.yaml") if yaml else None
    Path("pool.yaml").write_text("\n".join(yaml), encoding="utf-8")
    Path("preset.ini").write_text("".join(f"{line}\n" for line in preset), encoding="utf-8")
    return load_settings(words, env, config)


def outcome(lines: list[str]) -> Iterator[str]:
    """Yield the lines of a result. The working directory must contain the model files."""
    try:
        settings = loaded(lines)
        specs = model_specs(settings)
    except ConfigError as error:
        yield f"! {error.message}"
        return
    server, model = defaults()
    changed = {name: leaf for name, leaf in leaves(settings.server).items() if leaf != server[name]}
    if changed:
        yield "= server: " + "; ".join(f"{name} = {leaf!r}" for name, leaf in changed.items())
    for spec in specs:
        own = leaves(spec)
        plain = model | {f"draft.{name}": leaf for name, leaf in own.items()}  # a draft model inherits from its target
        changed = {n: leaf for n, leaf in own.items() if leaf != plain.get(n, ...) and n not in ECHOES}
        if changed or (len(specs), spec.id) != (1, "model.gguf"):
            yield f"= {spec.id} {spec.path}: " + "; ".join(f"{name} = {leaf!r}" for name, leaf in changed.items())
    try:
        yield from (f"~ {warning}" for warning in check_files(settings))
    except ConfigError as error:
        yield f"? {error.message.partition(' of this machine')[0]}"  # devices follow


def prepare(folder: Path) -> None:
    model = gguf_file(folder, TinyModel()).read_bytes()
    for name in FILES.split():
        (folder / f"{name}.gguf").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.gguf").write_bytes(model)
    (folder / "many/notes.txt").touch()
    (folder / "many/empty").mkdir()
    (folder / "empty").mkdir()
    (folder / "empty.gguf").touch()
    (folder / "blind/x/mmproj-F16.gguf").write_text("no projector")
    (folder / "t.jinja").write_text("{{ messages }}")
    (folder / "s.json").write_text('{"type": "object"}')
    (folder / "keys").write_text("# comment\nk1\n\nk2\n")
    (folder / "nokey").write_text("\n# only a comment\n  \n")
    (folder / "latin.yaml").write_bytes(b"models: \xff")


def result(lines: list[str], folder: Path) -> list[str]:
    """Return the lines of a result, without the path of the folder."""
    return [line.replace(str(folder), "FOLDER").replace("\n", "\\n") for line in outcome(lines)]


def test_each_case_has_its_recorded_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    for block in blocks():
        lines = command(block)
        assert result(lines, tmp_path) == block[len(lines) :], "\n".join(lines)


def models(lines: list[str]) -> list[tuple[ModelSettings, ModelSpec]]:
    """Return the models of a case, without those that the hub is asked for; none if the case is an error."""
    try:
        settings = loaded(lines)
        found = zip(settings.models.values(), model_specs(settings), strict=True)
        return [(model, spec) for model, spec in found if not (model.hf or model.draft_hf)]
    except ConfigError:
        return []


def test_flags_and_preset_of_a_model_give_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    preset = tmp_path / "p.ini"
    texts = {"system_prompt": 'You are "x"\nline 2; # no', "reverse_prompt": ["x y", "a,b", "\\n\n"], "path": "m.gguf"}
    own_case = ["$", "| models:", f"|   m: {json.dumps(texts)}"]
    for model, spec in [found for lines in (own_case, *map(command, blocks())) for found in models(lines)]:
        preset.write_text(spec.preset, encoding="utf-8")
        for arguments in (list(spec.args[1:]), ["--models-preset", str(preset), "--no-models-cache"]):
            (again,) = load_settings(arguments, {}).models.values()
            differ = {n for n in type(model).model_fields if getattr(model, n) != getattr(again, n)}
            left_out = {TABLE.by_flag["--" + name].key for name in re.findall(r"(?m)^; (\S+) =", spec.preset)}
            assert differ <= {"aliases", "tags", "load"} | left_out, arguments


def test_each_option_has_a_case() -> None:
    words = {word for block in blocks() for word in shlex.split(command(block)[0][1:])}
    missing = {entry.key for entry in TABLE if entry.flags and not words & {*entry.flags, *entry.constants}}
    assert missing == {"reasoning_key_file"}, "add a case to golden.txt; test_reasoning_cipher tests reasoning_key_file"


if __name__ == "__main__":
    pytest_configure()  # otherwise the cases list your downloaded models
    with tempfile.TemporaryDirectory() as made:
        here = Path(made).resolve()
        prepare(here)
        os.chdir(here)
        cases = [command(block) for block in blocks()]
        GOLDEN.write_text("".join(f"{line}\n" for lines in cases for line in lines + result(lines, here)), "utf-8")
