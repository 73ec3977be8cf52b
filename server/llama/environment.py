"""Process settings that the native library reads once, while it is being loaded."""

import os
import sys

SWITCH_INTERVAL_S = 0.0005
SPIN_COUNT = "2000"


def prepare_environment() -> None:
    """Choose how OpenMP threads wait and how fast a thread gets the GIL back; `library` calls it before loading.

    A variable that the user set is left alone. OpenMP's threads spin at every barrier, about 300,000 rounds by
    default, and keep on spinning after a decode has ended: with as many compute threads as cores that takes the
    core away from the event loop (and, worse, from any other process). ``GOMP_SPINCOUNT`` bounds that, and still
    covers the barriers inside one decode; benchmarks/README.md has the measurements.

    A thread that comes back from a long native call waits up to ``sys.getswitchinterval()`` for a busy Python
    thread to let go of the GIL: 5 ms by default, several percent of a decode step.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
