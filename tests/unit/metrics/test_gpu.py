"""Metrics of GPUs, read from a fake NVML."""

import sys
from types import SimpleNamespace

import pytest

from server.metrics.exposition import Metrics
from server.metrics.gpu import GpuCollector, gpu_collector


class NVMLError(Exception):
    pass


def fake_nvml(*, driver: bool = True) -> SimpleNamespace:
    """Return an NVML with two GPUs, the second without a power sensor. `driver`: NVIDIA's driver is loaded."""

    def init() -> None:
        if not driver:
            raise NVMLError("Driver Not Loaded")

    def power(gpu: int) -> int:
        if gpu == 1:
            raise NVMLError("Not Supported")
        return 345_600

    return SimpleNamespace(
        NVMLError=NVMLError,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=init,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda gpu: f"H{gpu}00",
        nvmlDeviceGetUUID=lambda gpu: f"GPU-{gpu}",
        nvmlDeviceGetUtilizationRates=lambda gpu: SimpleNamespace(gpu=50 + gpu),
        nvmlDeviceGetMemoryInfo=lambda _: SimpleNamespace(used=1 << 30, total=80 << 30),
        nvmlDeviceGetPowerUsage=power,
        nvmlDeviceGetTemperature=lambda gpu, sensor: 60 + gpu + sensor,
    )


async def test_metrics_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    gpus = gpu_collector()
    assert gpus is not None
    gpus._reading = gpus.read()
    body, _ = Metrics(gpus=gpus).render("")
    lines = [line for line in body.decode().splitlines() if line.startswith("llamapool_gpu_")]
    assert lines == [
        'llamapool_gpu_info{gpu="0",name="H000",uuid="GPU-0"} 1',
        'llamapool_gpu_info{gpu="1",name="H100",uuid="GPU-1"} 1',
        'llamapool_gpu_utilization_ratio{gpu="0"} 0.5',
        'llamapool_gpu_utilization_ratio{gpu="1"} 0.51',
        'llamapool_gpu_memory_used_bytes{gpu="0"} 1.073741824e+09',
        'llamapool_gpu_memory_used_bytes{gpu="1"} 1.073741824e+09',
        'llamapool_gpu_memory_total_bytes{gpu="0"} 8.589934592e+10',
        'llamapool_gpu_memory_total_bytes{gpu="1"} 8.589934592e+10',
        'llamapool_gpu_power_watts{gpu="0"} 345.6',
        'llamapool_gpu_temperature_celsius{gpu="0"} 60',
        'llamapool_gpu_temperature_celsius{gpu="1"} 61',
    ]


def test_no_gpu_metrics_without_driver_or_library(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = fake_nvml(driver=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert gpu_collector() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_collector() is None
    with pytest.raises(NVMLError):
        GpuCollector(nvml)
