"""A pytest plugin that runs llama.cpp's server tests against another server. It changes neither tests nor replies.

`run` loads it before the suite's own conftest.py. `targets` gives the server's command line; `hub` provides models and
URLs. A regular expression for text that only a trained model would generate accepts any text, which is recorded.
CONF_SETTINGS is the path of a JSON file with the settings.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import types
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import targets
from hub import RESOLVE, Hub, NoSubstituteError

SETTINGS = json.loads(Path(os.environ["CONF_SETTINGS"]).read_text())
HUB = Hub(Path(SETTINGS["models"]))
STRICT = {"test_completion_with_response_format", "test_completion_with_json_schema", "test_completion_with_grammar"}
"""Tests whose text is constrained by a grammar or a schema, so that it does not depend on the weights."""
_PATHS = ("chat_template_file", "media_path", "slot_save_path", "models_preset", "log_path")

current: dict[str, Any] = {}
"""The running test: id, outcome and recorded texts."""
original_get = requests.get


def settings_of(server: Any) -> dict[str, Any]:
    """Return the attributes of the suite's ServerProcess and those listed in `targets`. Raises `NoSubstituteError`."""
    names = [
        name for cls in reversed(type(server).__mro__) for name in (*getattr(cls, "__annotations__", {}), *vars(cls))
    ]
    names += vars(server)
    found: dict[str, Any] = {name: getattr(server, name, None) for name in names if not name.startswith("_")}
    found = {name: value for name, value in found.items() if not callable(value)}
    found.pop("process", None)
    for name in _PATHS:
        if found.get(name):
            found[name] = os.path.abspath(found[name])
    if found.get("slot_save_path"):  # the suite's ./tmp; llama-server requires a separator at the end
        os.makedirs(found["slot_save_path"], exist_ok=True)
        found["slot_save_path"] += "/"
    draft = found.get("model_draft")
    found["draft_path"] = os.path.abspath(draft) if draft else None
    found["lora_paths"] = [os.path.abspath(path) for path in found.get("lora_files") or []]
    found |= {"hub_cache": SETTINGS["hub_cache"], "hub_url": HUB.url}
    return found | _model_of(found)


def _model_of(found: dict[str, Any]) -> dict[str, Any]:
    repository = found.get("model_hf_repo")
    none = {"model_path": None, "mmproj_path": None, "remote_preset": None, "is_router": True}
    if found.get("model_file"):
        return none | {"model_path": os.path.abspath(found["model_file"]), "is_router": False}
    if repository == "ggml-org/test-preset-ci":
        return none | {"remote_preset": repository}
    if not repository:
        return none | {"is_router": not found.get("model_url")}
    model, mmproj = HUB.model(repository, found.get("model_hf_file"))
    mmproj_path = str(mmproj) if mmproj and not found.get("no_mmproj") else None
    return none | {"model_path": str(model), "mmproj_path": mmproj_path, "is_router": False}


def start(server: Any, timeout_seconds: int = 60) -> None:
    """Start the target server; replaces ServerProcess.start."""
    try:
        argv, env, folder = targets.command(SETTINGS, settings_of(server))
    except NoSubstituteError as error:
        pytest.skip(str(error))
    start_timeout = SETTINGS["start_timeout"]
    current["starts"] += 1
    test = re.sub(r"[^A-Za-z0-9_.-]+", "_", (current["id"] or "none").split("/")[-1])[:120]
    log = server.log_path or str(Path(SETTINGS["logs"]) / f"{test}.{current['starts']}.log")
    server._log_file = open(log, "w")  # noqa: SIM115 (until `stop`)
    server.process = subprocess.Popen(
        [str(word) for word in argv],
        stdout=server._log_file,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=env,
        cwd=folder,
        start_new_session=True,
    )
    suite.server_instances.add(server)
    _await_health(server, max(timeout_seconds, start_timeout) if timeout_seconds <= 60 else start_timeout)
    server.ready = True


def _await_health(server: Any, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    url = f"http://{server.server_host.split(',')[0].strip()}:{server.server_port}/health"
    headers = {"Authorization": f"Bearer {server.api_key}"} if server.api_key else {}
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with {server.process.returncode} before it was ready")
        with contextlib.suppress(requests.RequestException):
            if original_get(url, headers=headers, timeout=5).status_code == 200:
                return
        time.sleep(0.02)
    raise TimeoutError(f"the server was not ready after {timeout_s} s")


def stop(server: Any) -> None:
    """Stop the server and its process group; replaces ServerProcess.stop."""
    suite.server_instances.discard(server)
    process, server.process = server.process, None
    if process is None:
        return
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(SETTINGS["stop_timeout"])
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # `start` created the group
    process.wait(10)
    server._log_file.close()


def match_regex(regex: str, text: Any) -> bool:
    """Search `text`, or accept and record any text unless the test is `STRICT`; replaces utils.match_regex."""
    if re.search(regex, text, re.IGNORECASE | re.MULTILINE | re.DOTALL):
        return True
    if current["name"] in STRICT:
        return False
    current["relaxed"].append({"regex": regex, "text": text})
    return isinstance(text, str) and bool(text)


def download_file(url: str, output_file_path: str | None = None) -> str:
    """Return the path of a substitute file; replaces utils.download_file."""
    del output_file_path
    found = RESOLVE.fullmatch(urllib.parse.urlparse(url).path)
    path = HUB.file(*found.groups()) if found else None
    if path is None or not path.is_file():
        pytest.skip(f"no substitute file for {url}")
    return str(path)


def patch_suite() -> types.ModuleType:
    """Replace functions that start llama-server or use the network. Return the suite's module ``utils``."""
    wget = types.ModuleType("wget")  # imported by the suite, and not used after the replacements
    sys.modules.setdefault("wget", wget)
    sys.path.insert(0, SETTINGS["tests_dir"])
    import utils

    HUB.start()
    HUB.fill_cache(Path(SETTINGS["hub_cache"]))
    utils.ServerProcess.start, utils.ServerProcess.stop = start, stop
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.match_regex, utils.download_file = match_regex, download_file
    requests.get = lambda url, *args, **kwargs: original_get(HUB.on_loopback(url), *args, **kwargs)
    (Path(SETTINGS["tests_dir"]) / "tmp").mkdir(exist_ok=True)
    return utils  # type: ignore[no-any-return]


suite = patch_suite()


def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Replace the URLs of images by those of the local hub."""
    for module in {item.module for item in items}:
        if hasattr(module, "get_img_url"):
            original = module.get_img_url
            module.get_img_url = lambda name, original=original: HUB.on_loopback(original(name))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Write one line of results per test, and stop the servers that it left running."""
    name = getattr(item, "originalname", item.name)
    current.update(id=item.nodeid, name=name, relaxed=[], starts=0, outcome="passed", message="")
    started = time.monotonic()
    yield
    result = {"id": item.nodeid, "outcome": current["outcome"], "seconds": round(time.monotonic() - started, 2)}
    result |= {key: current[key] for key in ("message", "relaxed") if current[key]}
    with Path(SETTINGS["results_jsonl"]).open("a") as results:
        results.write(json.dumps(result, ensure_ascii=False) + "\n")
    for server in list(suite.server_instances):
        stop(server)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record the outcome of the running test."""
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        where = f"{Path(crash.path).name}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
        current.update(outcome="failed" if report.when == "call" else "error", message=where[:600])
    elif report.skipped and current["outcome"] == "passed":
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
        current.update(outcome="skipped", message=str(reason)[:200])
