"""Emulate a kubelet: the environment variables of Services, and volumes that change in one step.

Tests use it without a cluster; tests/pod/pod.py emulates the kubelet for the image.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def service_links(service: Mapping[str, Any], address: str) -> dict[str, str]:
    """Return the variables that describe a Service with the cluster IP `address`.

    Follows kubernetes/pkg/kubelet/envvars/envvars.go. A container gets them for each Service of its namespace that has
    an address and existed when the Pod started, unless the Pod sets ``enableServiceLinks: false``.
    """
    prefix = _variable(service["metadata"]["name"])
    ports = service["spec"]["ports"]
    host = f"[{address}]" if ":" in address else address
    links = {f"{prefix}_SERVICE_HOST": address, f"{prefix}_SERVICE_PORT": str(ports[0]["port"])}
    for number, port in enumerate(ports):
        protocol = port.get("protocol", "TCP")
        url = f"{protocol.lower()}://{host}:{port['port']}"
        if "name" in port:
            links[f"{prefix}_SERVICE_PORT_{_variable(port['name'])}"] = str(port["port"])
        if number == 0:
            links[f"{prefix}_PORT"] = url
        start = f"{prefix}_PORT_{port['port']}_{protocol}"
        links |= {start: url, f"{start}_PROTO": protocol.lower()}
        links |= {f"{start}_PORT": str(port["port"]), f"{start}_ADDR": address}
    return links


def write_volume(folder: Path, files: Mapping[str, str]) -> None:
    """Fill the folder of a ConfigMap or Secret, or replace all of its files in one step.

    Follows kubernetes/pkg/volume/util/atomic_writer.go: each file is a link through ``..data``, which is replaced by a
    rename. A reader sees all old files or all new ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "..data"
    old = folder / os.readlink(data) if data.is_symlink() else None
    version = folder / f"..{int(old.name.removeprefix('..')) + 1 if old else 1}"
    version.mkdir()
    for name, text in files.items():
        (version / name).write_text(text, encoding="utf-8")
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(data)
    if old is not None:
        shutil.rmtree(old)


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")
