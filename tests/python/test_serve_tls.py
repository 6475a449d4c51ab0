"""TLS of the server, to stock clients; what is wrong with a certificate is said at start."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from quire.serve.config import ServeConfig
from serving import RunningServer, running_server


@dataclass
class Signed:
    certificate: Any
    key: Any
    certificate_path: str
    key_path: str


def sign(directory: Path, name: str, by: Signed | None) -> Signed:
    """A certificate for 127.0.0.1, or with ``by`` None one that signs others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.timezone.utc)
    host = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(host, critical=False)
        .sign(key if by is None else by.key, hashes.SHA256())
    )
    signed = Signed(certificate, key, str(directory / f"{name}.pem"), str(directory / f"{name}.key"))
    Path(signed.certificate_path).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    Path(signed.key_path).write_bytes(pem(key, serialization.NoEncryption()))
    return signed


def pem(key: Any, encryption: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Signed:
    return sign(tmp_path_factory.mktemp("authority"), "authority", None)


@pytest.fixture(scope="module")
def certificate(authority: Signed) -> Signed:
    return sign(Path(authority.key_path).parent, "server", authority)


@pytest.fixture(scope="module")
def server(authority: Signed, certificate: Signed) -> Iterator[RunningServer]:
    """One that asks clients for no certificate, and takes none that nobody has signed."""
    with running_server(
        "--ssl-certfile", certificate.certificate_path, "--ssl-keyfile", certificate.key_path,
        "--ssl-ca-certs", authority.certificate_path, "--ssl-cert-reqs", "1",
    ) as server:  # fmt: skip
        yield server


def context(authority: Signed, client: Signed | None = None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority.certificate_path)
    if client is not None:
        made.load_cert_chain(client.certificate_path, client.key_path)
    return made


def test_stock_clients_are_served_and_told_who_serves(server: RunningServer, authority: Signed) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    with httpx.Client(verify=context(authority)) as http:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, http_client=http)
        stream = client.completions.create(
            model="quire-demo", prompt="Once upon a time", max_tokens=8, stream=True, temperature=0
        )
        text = "".join(chunk.choices[0].text for chunk in stream)
        whole = client.completions.create(
            model="quire-demo", prompt="Once upon a time", max_tokens=8, temperature=0
        )
        assert text == whole.choices[0].text != ""
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        httpx.get(server.url + "/health")
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(server.url.replace("https", "http") + "/health")


def test_a_clients_certificate_must_be_signed_by_those_we_know(
    server: RunningServer, authority: Signed, tmp_path: Path
) -> None:
    known, stranger = sign(tmp_path, "known", authority), sign(tmp_path, "stranger", None)
    health = server.url + "/health"
    assert httpx.get(health, verify=context(authority, known)).status_code == 200
    with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
        httpx.get(health, verify=context(authority, stranger))


def test_files_that_tls_cannot_begin_with_are_named(
    authority: Signed, certificate: Signed, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.key"
    secret.write_bytes(pem(certificate.key, serialization.BestAvailableEncryption(b"p")))
    broken = tmp_path / "broken"
    broken.write_text("no certificate")
    own, key = certificate.certificate_path, certificate.key_path
    for files, text in (
        ((own, key, authority.certificate_path), ""),
        ((own, authority.key_path, None), "ssl_keyfile .* are not a certificate and its key"),
        ((own, str(broken), None), "ssl_keyfile .* are not a certificate and its key"),
        ((str(broken), key, None), "ssl_certfile .* are not a certificate and its key"),
        ((own, "/nowhere/key", None), "ssl_keyfile cannot be read: .*No such file"),
        ((own, str(secret), None), "ssl_keyfile is encrypted"),
        ((own, key, str(broken)), "ssl_ca_certs .* has no certificates"),
    ):
        config = ServeConfig(ssl_certfile=files[0], ssl_keyfile=files[1], ssl_ca_certs=files[2])
        if not text:
            config.check_tls()
            continue
        with pytest.raises(ValueError, match=text):
            config.check_tls()
    with pytest.raises(RuntimeError, match=r"^quire: ssl_keyfile cannot be read.*\n$"):
        RunningServer("--ssl-certfile", own, "--ssl-keyfile", "/nowhere/key")
