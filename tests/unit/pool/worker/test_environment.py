"""Which variables a model's process gets."""

from pathlib import Path

import pytest

from server.pool.worker.environment import child_environment

NEEDED = {
    "PATH": "/bin",
    "HOME": "/root",
    "LD_LIBRARY_PATH": "/lib",
    "CUDA_VISIBLE_DEVICES": "1",
    "OMP_NUM_THREADS": "2",
}
SECRETS = {
    "LLAMA_API_KEY": "k",
    "LLAMA_ARG_API_KEY": "k",
    "LLAMAPOOL_SERVER__API_KEYS": "k",
    "LLAMA_CLOUD_API_KEY": "k",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=k",
    "OPENAI_API_KEY": "k",
    "DATABASE_URL": "postgres://u:p@db/x",
}
STORES = {
    "s3": {"AWS_ACCESS_KEY_ID": "a", "AWS_PROFILE": "p", "FSSPEC_S3_ENDPOINT_URL": "http://127.0.0.1:1"},
    "gs": {"GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "FSSPEC_GCS_TOKEN": "t"},
    "az": {"AZURE_STORAGE_CONNECTION_STRING": "c", "FSSPEC_ABFS_ACCOUNT_NAME": "n"},
    "hf": {"HF_TOKEN": "t"},
    "sftp": {"FSSPEC_SFTP_PASSWORD": "p"},
}
NETWORK = {"HTTPS_PROXY": "http://u:p@127.0.0.1:2", "no_proxy": "localhost", "SSL_CERT_FILE": "/ca.pem"}
EVERY = {**NEEDED, **SECRETS, **NETWORK} | {name: value for store in STORES.values() for name, value in store.items()}


@pytest.mark.parametrize("place", [None, Path("/var/cache")])
def test_without_a_store_it_gets_what_computes_and_no_secret(place: Path | None) -> None:
    assert child_environment(EVERY, [place]) == NEEDED


@pytest.mark.parametrize("scheme", list(STORES))
def test_the_variables_of_its_own_store_are_there_and_no_others(scheme: str) -> None:
    assert child_environment(EVERY, [None, f"{scheme}://bucket/folder"]) == {**NEEDED, **NETWORK, **STORES[scheme]}


def test_a_chained_address_needs_the_variables_of_all_its_stores() -> None:
    found = child_environment(EVERY, ["simplecache::s3://bucket/folder"])
    assert found == {**NEEDED, **NETWORK, **STORES["s3"]}
