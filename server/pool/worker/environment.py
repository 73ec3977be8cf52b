"""Which of the server's environment variables a model's process gets.

An allow-list: what the system, the compute libraries and the URLs of its stores need. API keys, hub tokens
and headers of telemetry stay in the server. Options of a store that is not listed can be given as fsspec's own
``FSSPEC_<SCHEME>_<OPTION>``.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_SYSTEM = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("DYLD_LIBRARY_PATH", "XDG_RUNTIME_DIR", "PYTHONHASHSEED", "GLIBC_TUNABLES"),
    )
)
_COMPUTE = (
    *("LC_", "MALLOC_", "MIMALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "GGML_", "MTMD_"),
    *("LLAMA_ATTN_", "LLAMA_BATCH_", "LLAMA_GRAPH_", "LLAMA_KV_CACHE_", "LLAMA_SET_ROWS", "LLAMA_SWA_", "LLAMA_TRACE"),
    *("CUDA_", "NVIDIA_", "NCCL_", "HIP_", "HSA_", "ROCR_", "ROCM_", "ROCBLAS_", "GPU_DEVICE_ORDINAL", "AMD_"),
    *("VK_", "MESA_", "METAL_", "MTL_", "SYCL_", "ONEAPI_", "ZE_", "ZES_", "MUSA_", "ASCEND_"),
)
_NETWORK = frozenset(
    (
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
        *("CURL_CA_BUNDLE", "XDG_CONFIG_HOME", "FSSPEC_CONFIG_DIR"),
    )
)
_STORES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("s3", "s3a"), ("AWS_", "BOTO_CONFIG")),
    (("gs", "gcs"), ("GOOGLE_", "GCLOUD_", "CLOUDSDK_", "GCE_METADATA_", "GCSFS_", "STORAGE_EMULATOR_HOST")),
    (("az", "abfs", "abfss", "adl"), ("AZURE_", "IDENTITY_", "MSI_")),
    (("hf",), ("HF_", "HUGGING_FACE_")),
)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)(?:://|::)")  # of chained addresses each one


def child_environment(given: Mapping[str, str], stores: Iterable[Path | str | None]) -> dict[str, str]:
    """Return the part of `given` for the process of a model that keeps states in these folders or at these URLs."""
    exact, prefixes = set(_SYSTEM), set(_COMPUTE)
    schemes = {scheme for place in stores if isinstance(place, str) for scheme in _SCHEME.findall(place)}
    if schemes:
        exact |= _NETWORK | {name.lower() for name in _NETWORK if name.endswith("_PROXY")}
    for names, needed in _STORES:
        if schemes & set(names):
            schemes |= set(names)
            prefixes |= set(needed)
    exact |= {f"FSSPEC_{scheme.upper()}" for scheme in schemes}
    prefixes |= {f"FSSPEC_{scheme.upper()}_" for scheme in schemes}
    return {name: value for name, value in given.items() if name in exact or name.startswith(tuple(prefixes))}
