"""The peer: llama-server, compiled from the sources of the installed llama-cpp-python, on that one's libraries.

``python -m tests.support.peer [--folder DIR] [--sources ARCHIVE] [--jobs N]`` prints its path; `compare` builds it
by itself.

Whatever differs between it and Llamapool is then the server's doing: the sources come from the source distribution of
the same version, and only `tools/server` is compiled (half a minute to four on two cores); libllama, ggml, mtmd and
common are the very files that Llamapool loads. The web page is left out. It lies in the user's cache, one folder for
each version and installation, so a checkout stays as it is and another one finds it.
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
_PAGE_H = """#pragma once
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
_PAGE_CPP = """#include "ui.h"
static const std::array<llama_ui_asset, 0> none{};
const llama_ui_asset * llama_ui_find_asset(const std::string &) { return nullptr; }
bool llama_ui_use_gzip() { return false; }
const std::array<llama_ui_asset, 0> & llama_ui_get_assets() { return none; }
"""


class PeerError(Exception):
    """It could not be built; says at what."""


def installed_libraries() -> tuple[Path, ...]:
    """The folders that hold what is linked: the one that Llamapool loads from first. Raises `PeerError`."""
    site = Path(sysconfig.get_paths()["purelib"]).resolve()
    folders = (site / "llama_cpp" / "lib", site / "lib")
    for name in _LIBRARIES:
        if not any((folder / f"lib{name}.so").exists() for folder in folders):
            raise PeerError(f"{PACKAGE} was installed without lib{name}.so: build it from source (make serve does)")
    return folders


def build(folder: Path | None = None, sources: Path | None = None, jobs: int = 0) -> Path:
    """llama-server, compiled where it is not there yet. `sources`: the source distribution, else pip fetches it.

    Raises `PeerError`.
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
    (objects / "ui.h").write_text(_PAGE_H)
    (objects / "ui.cpp").write_text(_PAGE_CPP)
    flags = [*_FLAGS, f"-I{objects}", *(f"-I{tree / include}" for include in _INCLUDES)]
    if _has_tls(libraries):
        flags.append("-DCPPHTTPLIB_OPENSSL_SUPPORT")  # cpp-httplib is in libllama-common: its classes must look alike
    files = [*sorted((tree / "tools" / "server").glob("*.cpp")), objects / "ui.cpp"]
    with ThreadPoolExecutor(jobs or os.cpu_count()) as several:
        compiled = list(several.map(lambda file: _compiled(file, objects, flags), files))
    _link(server, compiled, libraries)
    return server


def rpc_backend(folder: Path | None = None, sources: Path | None = None) -> Path:
    """ggml's RPC backend as a library that ``GGML_BACKEND_PATH`` can name, compiled where it is not there yet (ten
    seconds): with ``rpc-server`` beside it a second device on a machine without any. Raises `PeerError`."""
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
    """It on `model`; it takes the context as asked, whatever memory is free."""
    port = free_port()
    command = [str(server), "-m", str(model), "--host", "127.0.0.1", "--port", str(port), "--fit", "off", *flags]
    return RealServer(command, port, environment)


def _fingerprint(libraries: tuple[Path, ...]) -> str:
    """Of the installation: where it lies and when it was made."""
    common = _library(libraries, "llama-common")
    return hashlib.sha256(f"{common} {common.stat().st_mtime_ns}".encode()).hexdigest()[:8]


def _library(folders: tuple[Path, ...], name: str) -> Path:
    return next(file for folder in folders if (file := folder / f"lib{name}.so").exists())


def _has_tls(folders: tuple[Path, ...]) -> bool:
    return b"libssl.so" in _library(folders, "llama-common").read_bytes()


def _unpacked(folder: Path, archive: Path | None, parts: Iterable[str]) -> Path:
    """Return llama.cpp's tree from the source distribution, with `parts` of it, which are unpacked where one lacks."""
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
    """RPATH, not RUNPATH: it holds for what the libraries need of each other, too."""
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
    parser.add_argument("--folder", type=Path, help=f"where it is built; a folder of its own in {CACHE} by default")
    parser.add_argument("--sources", type=Path, help=f"the source distribution of {PACKAGE}, instead of pip's")
    parser.add_argument("--jobs", type=int, default=0, help="compilers at a time; 0 = one for each core")
    chosen = parser.parse_args()
    try:
        print(build(chosen.folder, chosen.sources, chosen.jobs))
    except PeerError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
