"""Run llama.cpp's own server tests against Llamapool or llama-server, and compare the results with llama-server's.

    python run.py --python PY                      Llamapool of this checkout, run by the interpreter PY
    python run.py --target llama-server --binary PATH

The tests come from llama-cpp-python's source distribution (``--suite``, or ``pip download``) and are not edited.
`models` generates substitute models, and `hub` serves them. The exit status is 1 if a test fails that llama-server
passes and `known.json` does not list, or if a test passes that `known.json` lists.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
WORK = PROJECT / "build" / "conformance"
VERSION = "0.3.36"  # of llama-cpp-python
FILES = (
    *("basic", "chat_completion", "compat_anthropic", "compat_gcp", "compat_oai_responses", "completion", "ctx_shift"),
    *("embedding", "ignore_eos", "infill", "kv_keep_only_active", "lora", "mcp_servers", "metrics", "proxy", "rerank"),
    *("router", "security", "sleep", "slot_save", "speculative", "stream", "template", "tokenize", "tool_call"),
    *("tools_builtin", "vision_api"),
)
"""All test files of the suite: ``unit/test_NAME.py``."""
NOT_INHERITED = ("LLAMA_ARG_HOST", "DEBUG", "DEBUG_EXTERNAL", "SLOW_TESTS", "LLAMA_MEDIA_MARKER")
PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")

Tests = dict[str, dict[str, Any]]
"""By pytest's id: outcome, seconds, and the texts for which a regular expression was relaxed."""


def find_suite(suite: str, cache: Path) -> Path:
    """Return the folder of the vendored llama.cpp: below `suite`, or below `cache`, downloaded if it is missing."""
    for root in [Path(suite)] if suite else [cache / f"llama_cpp_python-{VERSION}"]:
        for tree in (root, root / "vendor" / "llama.cpp"):
            if (tree / "tools" / "server" / "tests" / "utils.py").is_file():
                return tree
    if suite:
        sys.exit(f"no llama.cpp server tests under {suite}")
    cache.mkdir(parents=True, exist_ok=True)
    archive = next(cache.glob(f"llama_cpp_python-{VERSION}*.tar.gz"), None) or _download(cache)
    with tarfile.open(archive) as packed:
        packed.extractall(cache, filter="data")
    return find_suite(str(cache / f"llama_cpp_python-{VERSION}"), cache)


def _download(cache: Path) -> Path:
    source_only = ["--no-deps", "--no-binary", "llama-cpp-python", "-d", str(cache), f"llama-cpp-python=={VERSION}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *source_only], check=False)
    found = next(cache.glob(f"llama_cpp_python-{VERSION}*.tar.gz"), None)
    return found or sys.exit("the source distribution could not be downloaded; use --suite")


def copy_suite(tree: Path, folder: Path) -> Path:
    """Copy the tests, and the chat templates and media to which they have relative paths. Return the tests' folder."""
    copied = folder / "llama.cpp"
    ignored = shutil.ignore_patterns("__pycache__", "tmp", ".pytest_cache")
    shutil.copytree(tree / "tools/server/tests", copied / "tools/server/tests", ignore=ignored)
    shutil.copytree(tree / "models/templates", copied / "models/templates")
    (copied / "tools/mtmd").mkdir(parents=True)
    for path in (tree / "tools/mtmd").glob("test-1.*"):
        shutil.copy(path, copied / "tools/mtmd")
    return copied / "tools/server/tests"


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def run_tests(options: argparse.Namespace, tests_dir: Path, scratch: Path) -> Tests:
    """Run the selected files with `plugin`, print progress, and return the results."""
    results = scratch / "results.jsonl"
    results.touch()
    settings = {
        **{name: getattr(options, name) for name in ("target", "binary", "python", "start_timeout", "stop_timeout")},
        **{"project": str(PROJECT), "models": str(options.models), "scratch": str(scratch)},
        **{"tests_dir": str(tests_dir), "logs": str(scratch / "logs"), "hub_cache": str(scratch / "hub-cache")},
        **{"results_jsonl": str(results), "extra_args": options.extra_args.split()},
    }
    (scratch / "settings.json").write_text(json.dumps(settings, indent=1))
    env = {name: value for name, value in os.environ.items() if name not in (*NOT_INHERITED, *PROXY_VARIABLES)}
    env |= {"CONF_SETTINGS": str(scratch / "settings.json"), "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parent / 'support'}", "NO_PROXY": "*", "no_proxy": "*"}
    env |= {"PORT": str(options.port or free_port())}
    command = [sys.executable, "-m", "pytest", "-p", "plugin", "-m", "not slow", "-p", "no:cacheprovider", "-q"]
    command += ["--tb=short", "--timeout", str(options.timeout), "--timeout-method", "signal"]
    command += [f"unit/test_{name}.py" for name in options.files]
    command += ["-k", options.expression] if options.expression else []
    with (scratch / "pytest.log").open("w") as log:
        process = subprocess.Popen(command, cwd=tests_dir, env=env, stdout=log, stderr=subprocess.STDOUT)
        _watch(process, results)
    tests = {}
    for line in results.read_text().splitlines():
        result = json.loads(line)
        tests[result.pop("id")] = result
    if not tests:
        sys.exit(f"no test ran, see {scratch / 'pytest.log'}")
    return tests


def _watch(process: "subprocess.Popen[bytes]", results: Path) -> None:
    seen = 0
    while True:
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            lines = results.read_text().splitlines()
            for result in map(json.loads, lines[seen:]):
                print(f"{result['outcome']:8} {result['seconds']:6.1f}s {result['id']}", flush=True)
            seen = len(lines)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
        else:
            return


def compare(baseline: Tests, tests: Tests, known: dict[str, Any], files: list[str], *, part: bool) -> bool:
    """Print the tests that llama-server passes and this server fails. Return whether `known` lists exactly those tests.

    A test that passed against a server that does nothing (``passes_null``) is not counted. A test that did not run is a
    failure, unless only a `part` of the tests was selected.
    """
    reasons = {test: reason for reason, tests in known["not_there_yet"].items() for test in tests} | known["on_purpose"]
    per_file: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # passed, counted
    unexpected, n_same, n_texts = [], 0, 0
    for name, expected in baseline.items():
        file = name.split("::")[0].removeprefix("unit/test_").removesuffix(".py")
        if expected["outcome"] != "passed" or expected.get("passes_null") or file not in files:
            continue
        if name not in tests and part:
            continue
        got = tests.get(name, {"outcome": "missing"})
        passed = got["outcome"] == "passed"
        per_file[file][1] += 1
        per_file[file][0] += passed
        if not passed:
            print(f"{got['outcome']:8} {name}\n         {reasons.get(name, got.get('message', ''))}")
        if passed == (name in reasons):
            unexpected.append(f"{name}: passes, remove it from known.json" if passed else name)
        if "relaxed" in expected:
            n_texts += 1
            n_same += expected["relaxed"] == [entry["text"] for entry in got.get("relaxed", [])]
    print()
    for file, (n_passed, n) in sorted(per_file.items()):
        print(f"{file:24} {n_passed:4} of {n}")
    n_passed, n = (sum(counts) for counts in zip(*per_file.values(), strict=True)) if per_file else (0, 0)
    print(f"{'all':24} {n_passed:4} of {n} that llama-server passes; {n_same} of {n_texts} relaxed texts are identical")
    for name in unexpected:
        print("UNEXPECTED", name)
    return not unexpected


def main() -> int:
    """Parse the command line, run the suite and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=["llama-server", "llamapool"], default="llamapool")
    parser.add_argument("--binary", help="llama-server executable")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the project's dependencies")
    parser.add_argument("--suite", default="", help="unpacked sdist or llama.cpp tree (default: pip download)")
    parser.add_argument("--cache", type=Path, default=WORK, help="folder of the sdist, which is unpacked there")
    parser.add_argument(
        "--models", type=Path, default=WORK / "models", help="folder of the models, generated if missing"
    )
    parser.add_argument("--scratch", type=Path, help="an empty folder for logs (default: a new one)")
    parser.add_argument("--files", default=",".join(FILES), help="separated by commas: basic,completion")
    parser.add_argument("-k", dest="expression", help="pytest -k")
    parser.add_argument("--out", type=Path, default=WORK / "result.json")
    parser.add_argument("--timeout", type=int, default=150, help="seconds per test")
    parser.add_argument("--start-timeout", type=int, default=60, help="seconds for one start of a server")
    parser.add_argument("--stop-timeout", type=int, default=5)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--extra-args", default="", help="further flags of the server, separated by spaces")
    parser.add_argument("--download", action="store_true", help="download the suite and run nothing")
    options = parser.parse_args()
    if options.target == "llama-server" and not options.binary:
        parser.error("--target llama-server requires --binary")
    options.files = [name.strip().removeprefix("test_").removesuffix(".py") for name in options.files.split(",")]
    options.models = options.models.absolute()
    options.binary = options.binary and os.path.abspath(options.binary)
    tree = find_suite(options.suite, options.cache.absolute())
    if options.download:
        return 0
    scratch = (options.scratch or WORK / f"run-{os.getpid()}").absolute()
    for folder in ("logs", "hub-cache"):
        (scratch / folder).mkdir(parents=True)
    if not (options.models / "manifest.json").is_file():
        generate = [sys.executable, str(HERE / "models.py"), str(options.models), "--vocab-dir", str(tree / "models")]
        subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)
    started = time.monotonic()
    # Outside the checkout: the server's file search tools list the files that git lists, and git ignores build/.
    with tempfile.TemporaryDirectory(prefix="conformance-") as folder:
        tests = run_tests(options, copy_suite(tree, Path(folder)), scratch)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"target": options.target, "tests": tests}, indent=1, ensure_ascii=False) + "\n")
    print(f"\n{dict(Counter(test['outcome'] for test in tests.values()))} in {time.monotonic() - started:.0f} s")
    print(f"logs in {scratch}\n")
    baseline = json.loads((HERE / "baseline.json").read_text())["tests"]
    known = json.loads((HERE / "known.json").read_text())
    as_known = compare(baseline, tests, known, options.files, part=bool(options.expression))
    return 0 if as_known or options.target != "llamapool" else 1


if __name__ == "__main__":
    sys.exit(main())
