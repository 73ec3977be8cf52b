"""Start a Ray cluster on this machine with `llamapool.ray`: loopback only, no dashboard, no usage statistics.

``python -m tests.support.ray_cluster PORT APPLICATIONS`` serves until its standard input ends. APPLICATIONS is JSON:
arguments of `llamapool.ray.build` by route. A line ``APPLICATION REPLICA`` on standard input kills that replica's
process. Needs ``llamapool[ray]``.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.support.real_server import ROOT, STOP_S, RealServer, free_port

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # makes Ray use 127.0.0.1, on Linux, too
    "RAY_AUTH_MODE": "token",
    "RAY_agent_register_timeout_ms": "300000",  # for a busy machine
}
_OBJECT_STORE_BYTES = 80 << 20
TRIES = 4


class RayCluster(RealServer):
    """A `RealServer` with several applications. Each is served below its name, "" at the root, which has /health."""

    ready_s = 600.0  # Ray starts a dozen processes, and each replica imports Ray

    def __init__(self, applications: Mapping[str, Mapping[str, Any]]) -> None:
        port = free_port()
        command = [sys.executable, "-m", "tests.support.ray_cluster", str(port), json.dumps(applications)]
        environment = {**_ENVIRONMENT, "RAY_AUTH_TOKEN": secrets.token_hex(32), "PYTHONPATH": str(ROOT)}
        super().__init__(command, port, environment)

    def kill(self, replica: str, application: str = "") -> None:
        """Kill the process of a replica."""
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write(f"{_name(application)} {replica}\n".encode())
        stdin.flush()

    def _end(self) -> int:
        """Close standard input. Ray then stops its processes itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            return super()._end()


def _name(application: str) -> str:
    return application or "root"


def start_ray() -> None:
    """Start Ray. Retries, as its processes must start within 30 s, which a busy machine may exceed."""
    import ray

    for n_left in reversed(range(TRIES)):
        try:
            ray.init(
                num_cpus=8,  # only for Ray's accounting
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
            )
        except Exception:  # Ray has no error of its own for it
            ray.shutdown()
            if not n_left:
                raise
        else:
            return


def main(port: int, applications: Mapping[str, dict[str, Any]]) -> None:
    """Serve until standard input ends. Kill the replicas that its lines name."""
    import ray
    from ray import serve
    from ray.serve.config import HTTPOptions

    from llamapool.ray import build

    start_ray()
    # The root starts last: when it is ready, all are.
    serve.start(http_options=HTTPOptions(host="127.0.0.1", port=port))
    for name, arguments in sorted(applications.items(), reverse=True):
        serve.run(build(arguments), name=_name(name), route_prefix=f"/{name}")
    for line in sys.stdin:
        application, replica = line.split()
        ray.kill(ray.get_actor(f"SERVE_REPLICA::{application}#Replica#{replica}", namespace="serve"))
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
