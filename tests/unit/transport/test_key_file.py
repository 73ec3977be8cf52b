"""Key files: entries, their errors, and ``llamapool keys``, which adds and lists entries."""

import os
import resource
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from threading import Barrier

import pytest
import yaml

from server.cli.key_commands import main
from server.errors import ConfigError
from server.transport import keys
from server.transport.keys import KeyStore, add_entry, hash_of, new_key, read_keys

HASH = hash_of("secret")
FULL = f"""
keys:
  - name: ada
    hash: {HASH}
    scopes: [infer, slots]
    models: [demo, qwen*]
    requests_per_minute: 60
    tokens_per_minute: 1000
    max_concurrent_requests: 4
    priority: -2
    expires: 2027-01-01
  - {{name: bert, hash: {hash_of("other")}, expires: 2027-01-01T10:00:00+02:00}}
"""


def write_keys(folder: Path, text: str) -> Path:
    file = folder / "keys.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def entry(name: str) -> dict[str, str]:
    return {"name": name, "hash": hash_of(new_key())}


def test_entries_are_read_with_scopes_models_and_limits(tmp_path: Path) -> None:
    ada, bert = read_keys(write_keys(tmp_path, FULL))
    assert (ada.name, ada.hash, ada.scopes) == ("ada", HASH, ("infer", "slots"))
    assert (ada.models, ada.priority) == (("demo", "qwen*"), -2)
    assert (ada.requests_per_minute, ada.tokens_per_minute, ada.max_concurrent_requests) == (60, 1000, 4)
    assert ada.expires_at == datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert bert.expires_at == datetime(2027, 1, 1, 8, tzinfo=UTC).timestamp()
    assert (bert.scopes, bert.models, bert.is_limited, bert.priority) == (("infer",), (), False, 0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keys: [{name: ada}]", r"keys\.0\.hash \('ada'\): Field required"),
        (f"keys: [{{name: ada, hash: '{HASH}', scope: [infer]}}]", r"keys\.0\.scope \('ada'\): Extra inputs"),
        (f"keys: [{{name: ada, hash: '{HASH}', scopes: [root]}}]", r"keys\.0\.scopes\.0 \('ada'\): Input should be"),
        ("keys: [{name: ada, hash: secret}]", r"keys\.0\.hash \('ada'\): String should match .*`llamapool keys add"),
        (
            f"keys: [{{name: ada, hash: '{HASH}', max_concurrent_requests: -1}}]",
            r"max_concurrent_requests \('ada'\): Input should be greater",
        ),
        (f"keys: [{{name: ada, hash: '{HASH}', expires: soon}}]", r"expires"),
        (f"keys: [{{name: a, hash: '{HASH}'}}, {{name: b, hash: '{HASH}'}}]", "'a' has the hash of another entry"),
        (f"keys: [{{name: ada, hash: '{hash_of('')}'}}]", r"hash \('ada'\): .*hash of an empty key"),
        (f"keys: [{{name: ada, hash: '{HASH}', expires: 2027-02-30}}]", "cannot be read: day is out of range"),
        ("keys: {", "cannot be read"),
        ("[" * 5000, "cannot be read: maximum recursion depth"),
        (f"keys: [{{name: ada, hash: '{HASH}', expires: 2027}}]", r"expires \('ada'\): .*such as 2027-01-01"),
        (f"keys: [{{name: ada, hash: '{HASH}', expires: true}}]", r"expires \('ada'\): .*such as 2027-01-01"),
        (f"keys: [{{name: ada, hash: '{HASH}', expires: '1798761600.5'}}]", r"expires \('ada'\): .*such as 2027-01-01"),
        (f"keys: [{{name: ada, hash: '{HASH}', tokens_per_day: true}}]", r"tokens_per_day \('ada'\): .*a number"),
        (f"{FULL}keys:\n  - {{name: eve, hash: '{hash_of('eve')}'}}", "cannot be read: line 13: .*appears twice"),
        (f"keys:\n- name: ada\n  hash: '{HASH}'\n  models: [a]\n  models: [b]", "read: line 5: .*appears twice"),
        ("[]", "Input should be a valid dictionary"),
        ("\x00", "cannot be read"),
    ],
)
def test_invalid_entry_is_named(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        read_keys(write_keys(tmp_path, text))


def test_entry_replaces_what_it_merges(tmp_path: Path) -> None:
    text = f"keys:\n- &a {{name: ada, hash: '{HASH}', priority: 1, expires:}}\n"
    text += f"- &b {{<<: *a, hash: '{hash_of('b')}'}}\n- {{<<: *b, hash: '{hash_of('c')}'}}"
    assert [(key.name, key.priority) for key in read_keys(write_keys(tmp_path, text))] == [("ada", 1)] * 3


def test_yaml_error_does_not_quote_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot be read: line 4: expected") as raised:
        read_keys(write_keys(tmp_path, "keys:\n- name: ada\n  hash: [a-key-by-mistake\n- name: bert\n"))
    assert "a-key" not in raised.value.message


def test_added_key_is_accepted_and_not_stored_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "keys.yaml"
    limits = ("--max-concurrent-requests", "3", "--expires", "2030-01-01")
    main(["add", str(file), "ada", "--scopes", "infer,metrics", *limits])
    key = capsys.readouterr().out.strip()
    assert file.stat().st_mode & 0o777 == 0o600
    assert key not in file.read_text()
    file.write_text("# our keys\n" + file.read_text() + "  # the end")
    main(["add", str(file), "bert"])
    other = capsys.readouterr().out.strip()
    assert file.read_text().startswith("# our keys\n")
    store = KeyStore(read_keys(file))
    ada, bert = store.find(key.encode()), store.find(other.encode())
    assert ada is not None
    assert (ada.name, ada.scopes, ada.max_concurrent_requests) == ("ada", ("infer", "metrics"), 3)
    assert bert is not None
    assert (bert.name, bert.expires_at) == ("bert", inf)
    main(["list", str(file)])
    assert capsys.readouterr().out.startswith("ada: scopes infer metrics, max_concurrent_requests 3, expires")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["add", "{file}", "ada", "--scopes", "root"], "scopes"),
        (["add", "{file}", "ada", "--expires", "soon"], "expires"),
        (["add", "{file}", "ada", "--expires", "20270101"], "expires: .*such as 2027-01-01"),
        (["add", "{file}"], "the following arguments are required: name"),
        (["drop", "{file}"], "invalid choice"),
    ],
)
def test_invalid_command_leaves_the_file_unchanged(tmp_path: Path, arguments: list[str], expected: str) -> None:
    file = write_keys(tmp_path, FULL)
    with pytest.raises(ConfigError, match=expected):
        main([argument.format(file=file) for argument in arguments])
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]
    assert file.read_text() == FULL


def test_key_file_in_flow_style_is_left_unchanged(tmp_path: Path) -> None:
    file = write_keys(tmp_path, f"keys: [{{name: ada, hash: '{HASH}'}}]\n")
    with pytest.raises(ConfigError, match=r"write keys: as a plain list|cannot be read"):
        main(["add", str(file), "bert"])
    assert [path.name for path in tmp_path.iterdir()] == ["keys.yaml"]


def test_adding_an_entry_keeps_owner_group_and_mode_of_the_file(tmp_path: Path) -> None:
    """The server may read the file as a member of its group."""
    file = tmp_path / "keys.yaml"
    add_entry(file, entry("ada"))
    group = 4242 if os.geteuid() == 0 else os.getegid()
    os.chown(file, -1, group)
    file.chmod(0o640)
    add_entry(file, entry("bert"))
    status = file.stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o777) == (os.geteuid(), group, 0o640)
    assert [key.name for key in read_keys(file)] == ["ada", "bert"]


def test_concurrently_added_entries_are_all_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, names = tmp_path / "keys.yaml", [f"key{n}" for n in range(8)]
    barrier, dump = Barrier(len(names)), yaml.safe_dump
    monkeypatch.setattr(yaml, "safe_dump", lambda *args, **options: (barrier.wait(60), dump(*args, **options))[1])
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: add_entry(file, entry(name)), names))
    assert sorted(key.name for key in read_keys(file)) == sorted(names)


@pytest.mark.parametrize("text", [FULL, "# our keys\nkeys: []\n"])
def test_full_disk_leaves_the_file_unchanged(tmp_path: Path, text: str) -> None:
    file = write_keys(tmp_path, text)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(text) + 20, before[1]))
    try:
        with pytest.raises(ConfigError, match=r"keys\.yaml: File too large"):
            add_entry(file, entry("bert"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_text() == text


def test_write_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys\.yaml: No such file or directory"):
        add_entry(tmp_path / "nothing" / "keys.yaml", entry("ada"))


def test_key_file_may_have_exactly_the_maximum_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_keys(tmp_path, FULL)
    monkeypatch.setattr(keys, "MAX_BYTES", len(FULL))
    assert read_keys(file)
    file.write_text(FULL + "#")
    with pytest.raises(ConfigError, match="larger than"):
        read_keys(file)
