"""Build llama-server ("the peer") from the sources of the installed llama-cpp-python, linked to its libraries.

``python -m tests.support.peer [--folder DIR] [--sources ARCHIVE] [--jobs N]`` prints its path. `benchmarks.compare`
builds it automatically.

The peer uses the same libllama, ggml, mtmd and common files as Llamapool, so all differences are those of the servers.
Only `tools/server` is compiled, without the web UI, from the source distribution of the same version; that takes 30 to
240 s on two cores. The result is stored in the user's cache, in one folder per version and installation.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

from tests.support.real_server import RealServer, free_port

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llamapool" / "peer"
PACKAGE = "llama-cpp-python"
SERVER = "llama-server"
_LIBRARIES = ("llama-common", "mtmd", "llama", "ggml", "ggml-cpu", "ggml-base")
_FLAGS = ("-std=gnu++17", "-O2", "-DNDEBUG", "-DLLAMA_SHARED", "-DGGML_SHARED", "-DLLAMA_SUBPROCESS", "-w")
_INCLUDES = ("tools/server", "tools/mtmd", "common", "include", "ggml/include", "vendor", "src", "")
_UI_H = """#pragma once
#include <array>
#include <cstddef>
#include <string>
struct llama_ui_asset {
    std::string name; const unsigned char * data; std::size_t size; std::string etag; std::string type;
};
const llama_ui_asset * llama_ui_find_asset(const std::string & name);
bool llama_ui_use_gzip();
const std::array<llama_ui_asset, 0> & llama_ui_get_assets();
"""
_UI_CPP = """#include "ui.h"
static const std::array<llama_ui_asset, 0> none{};
const llama_ui_asset * llama_ui_find_asset(const std::string &) { return nullptr; }
bool llama_ui_use_gzip() { return false; }
const std::array<llama_ui_asset, 0> & llama_ui_get_assets() { return none; }
"""


class PeerError(Exception):
    """The build failed. The message names the command and its output."""


def installed_libraries() -> tuple[Path, ...]:
    """Return the folders of the linked libraries, first the one that Llamapool loads from. Raises `PeerError`."""
    site = Path(sysconfig.get_paths()["purelib"]).resolve()
    folders = (site / "llama_cpp" / "lib", site / "lib")
    for name in _LIBRARIES:
        if not any((folder / f"lib{name}.so").exists() for folder in folders):
            raise PeerError(f"{PACKAGE} was installed without lib{name}.so: build it from source (make serve does)")
    return folders


def build(folder: Path | None = None, sources: Path | None = None, jobs: int = 0) -> Path:
    """Return the path of llama-server. Compiles it if it does not exist. Raises `PeerError`.

    ``sources`` is the path of the source distribution; without it, pip downloads one. ``jobs``: 0 = one per CPU.
    """
    libraries = installed_libraries()
    folder = folder or CACHE / f"{version(PACKAGE)}-{_fingerprint(libraries)}"
    server = folder / SERVER
    if server.exists():
        return server
    objects = folder / "objects"
    objects.mkdir(parents=True, exist_ok=True)
    print(f"compiling {server}: some minutes, once", file=sys.stderr)
    tree = _unpacked(folder, sources, _INCLUDES)
    (objects / "ui.h").write_text(_UI_H)
    (objects / "ui.cpp").write_text(_UI_CPP)
    flags = [*_FLAGS, f"-I{objects}", *(f"-I{tree / include}" for include in _INCLUDES)]
    if _has_tls(libraries):
        flags.append("-DCPPHTTPLIB_OPENSSL_SUPPORT")  # libllama-common has cpp-httplib: same class layouts
    files = [*sorted((tree / "tools" / "server").glob("*.cpp")), objects / "ui.cpp"]
    with ThreadPoolExecutor(jobs or os.cpu_count()) as executor:
        compiled = list(executor.map(lambda file: _compiled(file, objects, flags), files))
    _link(server, compiled, libraries)
    return server


def rpc_backend(folder: Path | None = None, sources: Path | None = None) -> Path:
    """Return the path of ggml's RPC backend for ``GGML_BACKEND_PATH``. Compiles it in ten seconds if it does not exist.

    With a running ``rpc-server``, it provides a device on a machine without GPUs. Raises `PeerError`.
    """
    libraries = installed_libraries()
    folder = folder or CACHE / f"{version(PACKAGE)}-{_fingerprint(libraries)}"
    backend = folder / "libggml-rpc.so"
    if backend.exists():
        return backend
    folder.mkdir(parents=True, exist_ok=True)
    tree = _unpacked(folder, sources, ("ggml/include", "ggml/src"))
    files = [tree / "ggml" / "src" / "ggml-rpc" / name for name in ("ggml-rpc.cpp", "transport.cpp")]
    defined = [f"-DGGML_{name}" for name in ("BACKEND_DL", "BACKEND_SHARED", "BACKEND_BUILD", "SHARED")]
    found = [word for place in libraries for word in (f"-L{place}", f"-Wl,-rpath,{place}")]
    part = backend.with_suffix(".part")
    includes = [f"-I{tree / 'ggml' / name}" for name in ("include", "src")]
    flags = ["-std=gnu++17", "-O1", "-shared", "-fPIC", "-w", *defined, *includes]
    _run(["g++", *flags, *map(str, files), *found, "-lggml-base", "-o", str(part)])
    part.replace(backend)
    return backend


def llama_server(server: Path, model: Path, *flags: str, environment: Mapping[str, str] | None = None) -> RealServer:
    """Start `server` with `model`. It does not reduce its context to the free memory."""
    port = free_port()
    command = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "--fit", "off", *flags]
    return RealServer(command, port, environment)


def _fingerprint(libraries: tuple[Path, ...]) -> str:
    """Return a hash of the installation's path and time."""
    common = _library(libraries, "llama-common")
    return hashlib.sha256(f"{common} {common.stat().st_mtime_ns}".encode()).hexdigest()[:8]


def _library(folders: tuple[Path, ...], name: str) -> Path:
    return next(file for folder in folders if (file := folder / f"lib{name}.so").exists())


def _has_tls(folders: tuple[Path, ...]) -> bool:
    return b"libssl.so" in _library(folders, "llama-common").read_bytes()


def _unpacked(folder: Path, archive: Path | None, parts: Iterable[str]) -> Path:
    """Return the folder of llama.cpp's sources. Unpacks `parts` of the source distribution if one is missing."""
    name = f"llama_cpp_python-{version(PACKAGE)}"
    tree = folder / name / "vendor" / "llama.cpp"
    if all((tree / part).exists() for part in parts):
        return tree
    archive = archive or next(folder.glob(f"{name}.tar.gz"), None)
    if archive is None:
        wanted = f"{PACKAGE}=={version(PACKAGE)}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", PACKAGE]
        _run([*pip, "--dest", str(folder), wanted])
        archive = folder / f"{name}.tar.gz"
    with tarfile.open(archive) as packed:
        vendored = f"{name}/vendor/llama.cpp/"
        wanted_parts = tuple(f"{vendored}{part}/" for part in parts if part)
        packed.extractall(folder, [m for m in packed if m.name.startswith(wanted_parts)], filter="data")
    return tree


def _compiled(file: Path, objects: Path, flags: list[str]) -> Path:
    target = objects / f"{file.stem}.o"
    if not target.exists():
        part = target.with_suffix(".part")
        _run(["g++", *flags, "-c", str(file), "-o", str(part)])
        part.replace(target)
    return target


def _link(server: Path, compiled: list[Path], libraries: tuple[Path, ...]) -> None:
    """Link with RPATH instead of RUNPATH, since it also applies to the dependencies of the libraries."""
    found = [word for folder in libraries for word in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    named = [f"-l{name}" for name in _LIBRARIES]
    part = server.with_suffix(".part")
    options = ["-Wl,--disable-new-dtags", "-Wl,--no-as-needed"]
    system = ["-lpthread", "-ldl", *(["-lssl", "-lcrypto"] if _has_tls(libraries) else [])]
    _run(["g++", *map(str, compiled), "-o", str(part), *options, *found, *named, *system])
    _run([str(part), "--version"])
    part.replace(server)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise PeerError(f"{' '.join(command[:3])} ... {command[-1]}: {done.stdout[-3000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.peer", description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help=f"where to build; by default a new folder in {CACHE}")
    parser.add_argument("--sources", type=Path, help=f"the source distribution of {PACKAGE}, instead of pip's")
    parser.add_argument("--jobs", type=int, default=0, help="number of parallel compilers; 0 = one per CPU")
    options = parser.parse_args()
    try:
        print(build(options.folder, options.sources, options.jobs))
    except PeerError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
