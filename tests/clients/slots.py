"""Watching a server's slots from outside."""

from tests.support.real_server import RealServer


def busy_slots(server: RealServer) -> int:
    """How many slots work right now."""
    return sum(slot["is_processing"] for slot in server.get("/slots"))


def metric(server: RealServer, name: str) -> float:
    """The sum over models of one of `/metrics`."""
    lines = server.request("GET", "/metrics").body.decode().splitlines()
    values = [float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name]
    assert values, f"no metric {name}"
    return sum(values)
