"""CPU affinity options in llama-server's syntax (llama.cpp common/common.cpp, parse_cpu_range and parse_cpu_mask);
separated by commas, one per instance.
"""

import re
from itertools import zip_longest

MOST_CPUS = 512  # GGML_MAX_N_THREADS


def range_cpus(text: str) -> frozenset[int]:
    """Parse ``lo-hi``; either end may be omitted. Raises ValueError."""
    found = re.fullmatch(r"(\d*)-(\d*)", text)
    if found is None:
        raise ValueError(f"'{text}' is not a CPU range such as 0-3 (0-0 for one CPU)")
    low, high = int(found[1] or 0), int(found[2] or MOST_CPUS - 1)
    if not low <= high < MOST_CPUS:
        raise ValueError(f"'{text}' is not a range within 0 to {MOST_CPUS - 1}")
    return frozenset(range(low, high + 1))


def mask_cpus(text: str) -> frozenset[int]:
    """Parse a hexadecimal mask whose lowest bit is CPU 0. Raises ValueError."""
    found = re.fullmatch(rf"(?:0x)?([0-9a-fA-F]{{1,{MOST_CPUS // 4}}})", text)
    if found is None or not int(found[1], 16):
        raise ValueError(f"'{text}' is not a hexadecimal CPU mask such as 0xf")
    bits = int(found[1], 16)
    return frozenset(i for i in range(bits.bit_length()) if bits >> i & 1)


def instance_cpus(ranges: tuple[str, ...], masks: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """Return the CPUs of each instance by range or mask; a single entry applies to all instances."""
    n = max(len(ranges), len(masks))
    by_ranges, by_masks = ([*map(range_cpus, ranges)], [*map(mask_cpus, masks)])
    pairs = zip_longest(_for_all(by_ranges, n), _for_all(by_masks, n), fillvalue=frozenset[int]())
    return tuple(by_range | by_mask for by_range, by_mask in pairs)


def one_set(ranges: str, mask: str) -> frozenset[int]:
    """Return the CPUs of a range, a mask, or both."""
    return (range_cpus(ranges) if ranges else frozenset()) | (mask_cpus(mask) if mask else frozenset())


def _for_all(given: list[frozenset[int]], n: int) -> list[frozenset[int]]:
    return given * n if len(given) == 1 else given
