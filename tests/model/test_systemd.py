"""systemd's service, started as the unit says, without systemd: its files, its environment, its reload."""

import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import yaml

from server.transport.keys import add_entry, hash_of, new_key
from tests.support.real_server import ROOT, RealServer, free_port

UNIT = ROOT / "deploy/systemd/llamapool.service"
WITHIN_S = 60.0


def words_of(text: str, name: str) -> list[str]:
    return [word for line in re.findall(rf"^{name}=(.*)$", text, re.MULTILINE) for word in shlex.split(line)]


def unit_in(folder: Path) -> str:
    """Return the unit with `folder` for /etc/llamapool, after systemd has copied its credentials (systemd.exec(5))."""
    text = UNIT.read_text(encoding="utf-8").replace("/etc/llamapool", str(folder))
    credentials = folder / "credentials"
    credentials.mkdir()
    for word in words_of(text, "LoadCredential"):
        name, _, source = word.partition(":")
        shutil.copy(source, credentials / name)
    return text.replace("%d", str(credentials)).replace("/var/cache/llamapool", str(folder / "cache"))


def test_a_key_that_is_removed_before_a_reload_is_refused(tmp_path: Path) -> None:
    kept, revoked = new_key(), new_key()
    keys, config = tmp_path / "keys.yaml", tmp_path / "config.yaml"
    for name, key in (("kept", kept), ("revoked", revoked)):
        add_entry(keys, {"name": name, "hash": hash_of(key)})
    port = free_port()
    models = {"demo": {"path": str(ROOT / "models/demo.gguf"), "n_ctx": 512, "load": "on_demand"}}
    config.write_text(yaml.safe_dump({"server": {"port": port}, "models": models}), encoding="utf-8")
    unit = unit_in(tmp_path)
    _, *arguments = words_of(unit, "ExecStart")
    environment = dict(word.split("=", 1) for word in words_of(unit, "Environment"))
    with RealServer([sys.executable, "-m", "server", *arguments], port, environment) as server:

        def status(key: str) -> int:
            return server.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"}).status

        assert (status(kept), status(revoked)) == (200, 200)
        entries = yaml.safe_load(keys.read_text(encoding="utf-8"))["keys"]
        keys.write_text(yaml.safe_dump({"keys": entries[:1]}), encoding="utf-8")
        reload = [word.replace("$MAINPID", str(server.process.pid)) for word in words_of(unit, "ExecReload")]
        subprocess.run(reload, check=True)
        deadline = time.monotonic() + WITHIN_S
        while status(revoked) == 200:
            assert time.monotonic() < deadline, "the revoked key is still valid"
            time.sleep(0.05)
        assert (status(kept), status(revoked)) == (200, 401)
