"""Time graph computations inside Llamapool and llama-server, and the gaps between them, for one decoding sequence.

``python -m benchmarks.graph_time --model GGUF [--turns 12]`` compiles a library that both servers preload. It wraps
`ggml_backend_sched_graph_compute_async`, which computes a whole decode on a CPU, and records the start and end of each
call. The servers run at the same time and reply alternately, without speculation. Linux with gcc only.

It shows whether the library or the server causes a difference in tokens per second. Run it with a negative nice value
(`nice -n -5`, as root); otherwise Llamapool may use fewer threads while other processes run.
"""

import argparse
import os
import statistics
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from tests.support.peer import build, llama_server
from tests.support.real_server import RealServer, llamapool

N_TOKENS = 96
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
typedef int (*compute_t)(void *, void *);
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
static long displaced(void) { struct rusage u; getrusage(RUSAGE_THREAD, &u); return u.ru_nivcsw; }
int ggml_backend_sched_graph_compute_async(void * sched, void * graph) {
    static compute_t compute; static FILE * out;
    if (!compute) {
        void * base = dlopen("libggml-base.so", RTLD_NOLOAD | RTLD_LAZY);
        if (!base) base = dlopen("libggml-base.so.0", RTLD_NOLOAD | RTLD_LAZY);
        compute = (compute_t) dlsym(base ? base : RTLD_NEXT, "ggml_backend_sched_graph_compute_async");
        out = fopen(getenv("GRAPH_TIMES"), "wb");
        if (!compute || !out) abort();
    }
    long n = displaced(); double began = now(); int status = compute(sched, graph);
    double record[3] = {began, now(), (double) (displaced() - n)};
    fwrite(record, sizeof record, 1, out); fflush(out);
    return status;
}
"""
RECORD = struct.Struct("ddd")


def compile_library(folder: Path) -> Path:
    """Compile the library that the servers preload. Raises `CalledProcessError`."""
    library = folder / "graph_time.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    return library


def stream(server: RealServer) -> None:
    """Read a streamed completion of `N_TOKENS`."""
    body = {"prompt": "Once upon a time", "n_predict": N_TOKENS, "ignore_eos": True, "temperature": 0, "stream": True}
    server.events("/completion", body)


def figures(times: bytes) -> Mapping[str, float]:
    """Return the medians of one request's decodes, in milliseconds, and how often the thread lost its CPU in each."""
    records = list(RECORD.iter_unpack(times))[-N_TOKENS + 2 :]  # without the prompt and the first decodes
    between = [later[0] - earlier[1] for earlier, later in pairwise(records)]
    return {
        "computation, ms": statistics.median(end - began for began, end, _ in records) * 1e3,
        "between two, ms": statistics.median(between) * 1e3,
        "tok/s": (len(records) - 1) / (records[-1][0] - records[0][0]),
        "displaced per token": statistics.mean(n for *_, n in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of graph computations in both servers.")
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    peer = build()
    flags = ("-t", str(options.threads), "-np", "8", "-c", "16384")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        library = compile_library(Path(folder))
        own = {name: {"LD_PRELOAD": str(library), "GRAPH_TIMES": f"{folder}/{name}"} for name in ("llamapool", "peer")}
        servers = {"llamapool": llamapool(options.model, *flags, "--spec-type", "none", environment=own["llamapool"])}
        stack.callback(servers["llamapool"].stop)
        servers["peer"] = llama_server(peer, options.model, *flags, environment=own["peer"])
        stack.callback(servers["peer"].stop)
        results: dict[str, list[Mapping[str, float]]] = {name: [] for name in servers}
        for server in servers.values():
            server.wait_until_ready()
        for turn in range(-1, options.turns):  # the first turn is a warm-up
            for name in servers if turn % 2 else reversed(servers):
                stream(servers[name])
                if turn >= 0:
                    results[name].append(figures(Path(folder, name).read_bytes()))
    print("| | Llamapool | llama-server |\n|---|--:|--:|")
    for figure in results["llamapool"][0]:
        cells = [f"{statistics.median(each[figure] for each in results[name]):.2f}" for name in results]
        print(f"| {figure} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
