"""HTTPS: a server with a self-signed certificate, and clients that trust only this one."""

import http.client
import socket
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from openai import DefaultHttpxClient, OpenAI

from tests.clients.conftest import QUIET
from tests.support.certificates import NEEDS_OPENSSL, make_certificate
from tests.support.real_server import REPLY_S, RealServer, free_port
from tests.support.waiting import wait_until

pytestmark = NEEDS_OPENSSL


class TlsServer(RealServer):
    """`python -m server` over TLS; requests trust only the certificate in `folder`."""

    tls: ssl.SSLContext

    def __init__(self, model: Path, folder: Path) -> None:
        self.key, self.certificate = make_certificate(folder)
        self.tls = ssl.create_default_context(cafile=self.certificate)
        port = free_port()
        sizes = ("-m", model, "--port", port, "-c", 512, "-t", 1)
        files = ("--ssl-key-file", self.key, "--ssl-cert-file", self.certificate)
        super().__init__([sys.executable, "-m", "server", *map(str, (*sizes, *files))], port, QUIET)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    with TlsServer(model, tmp_path_factory.mktemp("tls")) as running:
        yield running


def test_the_openai_client_streams_over_https(server: TlsServer) -> None:
    options = {"base_url": f"{server.base_url}/v1", "http_client": DefaultHttpxClient(verify=server.tls)}
    with OpenAI(**options, api_key="-", max_retries=0, timeout=REPLY_S) as client:  # type: ignore[arg-type]
        stream = client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": "Hi"}], max_tokens=4, stream=True
        )
        assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] in ("length", "stop")
    assert f"listening on {server.base_url}" in server.log_tail()


def test_clients_without_trust_or_tls_are_refused_and_the_server_survives(server: TlsServer) -> None:
    untrusting = http.client.HTTPSConnection(
        server.host, server.port, timeout=REPLY_S, context=ssl.create_default_context()
    )
    with pytest.raises(ssl.SSLCertVerificationError):
        untrusting.request("GET", "/health")
    untrusting.close()
    plain = http.client.HTTPConnection(server.host, server.port, timeout=REPLY_S)
    plain.request("GET", "/health")
    with pytest.raises((http.client.HTTPException, OSError)):
        plain.getresponse()
    plain.close()
    assert server.get("/health")["status"] == "ok"


def test_a_new_certificate_is_served_without_a_restart(model: Path, tmp_path: Path) -> None:
    with TlsServer(model, tmp_path) as server:
        new_key, new_certificate = make_certificate(tmp_path / "new")
        context = ssl.create_default_context(cafile=new_certificate)
        new_key.replace(server.key)  # until the certificate is replaced too, the server keeps the old pair
        new_certificate.replace(server.certificate)

        def trusted() -> bool:
            with suppress(ssl.SSLCertVerificationError):
                with socket.create_connection((server.host, server.port), REPLY_S) as plain:
                    context.wrap_socket(plain, server_hostname="localhost").close()
                return True
            return False

        wait_until(trusted, "the new certificate is served")
        assert "the certificate was read again" in server.log_tail()
