"""Certificates for a test, made by the openssl command: an authority, and what it signs."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

SERVER_NAMES: Final = "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2,IP:::1"
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


class Authority:
    """A certificate authority in a directory of its own.

    Args:
        directory: where its files and those that it signs are; created.
        name: its common name.
    """

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.certificate = directory / "authority.pem"
        self._key = directory / "authority.key"
        _openssl(
            *("req", "-x509", *_KEY, "-days", "2", "-subj", f"/CN={name}"),
            *("-keyout", str(self._key), "-out", str(self.certificate)),
        )

    def issue(
        self, name: str, subject: str, *, extension: str = "", rsa: bool = False, days: int = 2
    ) -> Issued:
        """Sign a new key. `subject` as openssl takes it: `/O=example/CN=ann`. `days` -1: it has expired."""
        issued = Issued(self.directory / f"{name}.pem", self.directory / f"{name}.key")
        request = self.directory / f"{name}.csr"
        key = ("-newkey", "rsa:2048", "-nodes") if rsa else _KEY
        _openssl(
            *("req", "-new", *key, "-utf8", "-subj", subject, "-multivalue-rdn"),
            *("-keyout", str(issued.key), "-out", str(request)),
        )
        more: tuple[str, ...] = ()
        if extension:
            file = self.directory / f"{name}.ext"
            file.write_text(extension + "\n")
            more = ("-extfile", str(file))
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-CAcreateserial", "-days", str(days), "-out", str(issued.certificate), *more),
        )
        return issued

    def server(self, name: str = "server", *, rsa: bool = False) -> Issued:
        """Sign a certificate for this host."""
        return self.issue(name, "/CN=localhost", extension=SERVER_NAMES, rsa=rsa)


class Issued:
    """A certificate and its key."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate = certificate
        self.key = key

    @property
    def both(self) -> Path:
        """A file with the key and the certificate."""
        path = self.certificate.with_suffix(".both.pem")
        path.write_text(self.key.read_text() + self.certificate.read_text())
        return path

    def der(self) -> bytes:
        """The certificate as TLS carries it."""
        return _openssl("x509", "-in", str(self.certificate), "-outform", "DER")


def _openssl(*arguments: str) -> bytes:
    done = subprocess.run(("openssl", *arguments), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout
