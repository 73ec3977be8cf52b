"""Print the rights of a process in the container as JSON. The test runs this file with the image's Python."""

import json
import os
from pathlib import Path

FOLDERS = ("/", "/app", "/opt/venv", "/tmp", "/models", "/etc/llamapool/config", "/home/llamapool")
LIMITS = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")  # cgroups v1 and v2


def is_writable(folder: str) -> bool:
    """Return whether `folder` is writable."""
    try:
        Path(folder, "probe").write_text("")
    except OSError:
        return False
    return True


lines = Path("/proc/self/status").read_text().splitlines()
status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
found = {
    "uid": os.getuid(),
    "gid": os.getgid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"],
    "writable": [folder for folder in FOLDERS if is_writable(folder)],
    "memory": next(Path(path).read_text().strip() for path in LIMITS if Path(path).exists()),
    "links": [name for name in os.environ if name.startswith("LLAMAPOOL_PORT")],
}
print(json.dumps(found))
