"""Certificates for tests, made with openssl."""

import shutil
import subprocess
from pathlib import Path

import pytest

NEEDS_OPENSSL = pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
TIMEOUT_S = 60.0


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Return a new key and its self-signed certificate for localhost and 127.0.0.1; creates `folder`."""
    folder.mkdir(exist_ok=True)
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command = ["openssl", "req", *kind, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    return key, certificate
