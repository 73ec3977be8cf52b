"""`llamapool bench` as a user runs it: a process of its own against a real server."""

import json
import subprocess
import sys

from tests.clients.conftest import API_KEY
from tests.support.forked_python import run
from tests.support.real_server import ROOT, RealServer

QUICK = ("--scale", "0.1", "--parallel", "2", "--timeout", "200")


def bench(server: RealServer, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server", "bench", "--url", f"{server.base_url}/v1", *QUICK, *words]
    return run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


def test_the_only_model_is_found_and_measured(server: RealServer) -> None:
    ended = bench(server, "--scenario", "one,rate", "--rounds", "2", "--json", "-")
    assert (ended.returncode, ended.stderr) == (0, "")
    result = json.loads(ended.stdout)
    assert result["model"] == "tiny"
    assert [len(scenario["rounds"]) for scenario in result["scenarios"]] == [2, 2]


def test_a_table_is_printed_for_people(server: RealServer) -> None:
    ended = bench(server, "--scenario", "slots", "--chat")
    assert ended.returncode == 0
    assert ended.stdout.splitlines()[1].split()[:2] == ["slots", "tok/s"]


def test_a_model_is_loaded_for_its_first_request(guarded: RealServer) -> None:
    assert bench(guarded, "--scenario", "rate").returncode == 4
    ended = bench(guarded, "--scenario", "rate", "--api-key", API_KEY, "--model", "second")
    assert (ended.returncode, ended.stderr) == (0, "")
