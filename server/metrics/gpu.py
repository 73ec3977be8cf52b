"""Utilization, memory, power and temperature of NVIDIA GPUs, read through NVML (the extra `nvidia`).

The values are read in a thread every `INTERVAL_S` seconds, because a call can take milliseconds.
"""

import asyncio
import importlib
import logging
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

logger = logging.getLogger(__name__)

INTERVAL_S = 5.0
_INFO = "llamapool_gpu_info"
GAUGES = {
    _INFO: "1; `gpu` is NVML's index",
    "llamapool_gpu_utilization_ratio": "Share of the last sample period in which a kernel ran on a GPU, 0 to 1",
    "llamapool_gpu_memory_used_bytes": "Memory of a GPU in use, by all processes",
    "llamapool_gpu_memory_total_bytes": "Memory of a GPU",
    "llamapool_gpu_power_watts": "Power draw of a GPU",
    "llamapool_gpu_temperature_celsius": "Temperature of a GPU",
}
Reading = dict[str, list[tuple[list[str], float]]]
"""The values of each gauge, each with its labels."""


class GpuCollector(Collector):
    """The last reading of all GPUs. `nvml` is the module `pynvml`."""

    def __init__(self, nvml: Any) -> None:
        """Raises `pynvml.NVMLError` on a machine without NVIDIA's driver."""
        self._nvml = nvml
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        self._gpus = [(gpu, nvml.nvmlDeviceGetName(gpu), nvml.nvmlDeviceGetUUID(gpu)) for gpu in handles]
        self._reading: Reading = {}

    def collect(self) -> Iterable[Metric]:
        for name, text in GAUGES.items():
            labels = ["gpu", "name", "uuid"] if name == _INFO else ["gpu"]
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, value in self._reading.get(name, ()):
                family.add_metric(values, value)
            yield family

    async def read_loop(self) -> None:
        """Read all GPUs periodically, until cancelled."""
        while True:
            self._reading = await asyncio.to_thread(self.read)
            await asyncio.sleep(INTERVAL_S)

    def read(self) -> Reading:
        """Return the values of all GPUs, without the values that a GPU does not report. Blocking."""
        nvml = self._nvml
        found: Reading = {}
        reads: dict[str, Callable[[Any], float]] = {
            "llamapool_gpu_utilization_ratio": lambda gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
            "llamapool_gpu_memory_used_bytes": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
            "llamapool_gpu_memory_total_bytes": lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
            "llamapool_gpu_power_watts": lambda gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
            "llamapool_gpu_temperature_celsius": lambda gpu: nvml.nvmlDeviceGetTemperature(
                gpu, nvml.NVML_TEMPERATURE_GPU
            ),
        }
        for index, (gpu, name, uuid) in enumerate(self._gpus):
            found.setdefault(_INFO, []).append(([str(index), name, uuid], 1.0))
            for gauge, read in reads.items():
                try:
                    found.setdefault(gauge, []).append(([str(index)], float(read(gpu))))
                except nvml.NVMLError as error:  # e.g. no power sensor, or the GPU has fallen off the bus
                    logger.debug("GPU %d: no %s: %s", index, gauge, error)
        return found


def gpu_collector() -> GpuCollector | None:
    """Return the collector of this machine's GPUs; None without the package or the driver."""
    try:
        pynvml: Any = importlib.import_module("pynvml")  # without type stubs
    except ImportError:
        return None
    try:
        return GpuCollector(pynvml)
    except pynvml.NVMLError as error:
        logger.info("no metrics of GPUs: %s", error)
        return None
