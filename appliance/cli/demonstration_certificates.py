"""The certificates of `appliance serve --secure`: an authority, a server's, and the administrator's.

    DATA_DIR/secure/           0700
        ca.pem, ca.key         the authority that signs the others
        server.pem, server.key the server's, for the names of this host
        admin.pem, admin.key   the administrator's: CN=admin
        admin-keystore.pem     key and certificate of the administrator in one file, as Java wants them

All files have mode 0600. The whole directory is made under another name and then renamed, so a start that is killed
leaves none. A start overwrites nothing. It makes a pair again if both files of it were removed and the authority is
there; this is how a certificate is renewed. A half of a pair is an error.

They are for trying and for development: the private key of the authority is on the host that it vouches for.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import shutil
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from appliance.errors import OperatorFault
from appliance.extras import need

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DIRECTORY: Final = "secure"
ADMIN: Final = "admin"
AUTHORITY_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 365
WARN_DAYS: Final = 30
CLOCKS_DIFFER: Final = timedelta(days=1)
"""A certificate is valid from a little before it is made, because another host's clock may be behind."""

_CA: Final = "ca"
_SERVER: Final = "server"
_PAIRS: Final = (_CA, _SERVER, ADMIN)
_KEYSTORE: Final = "admin-keystore.pem"
_DIRECTORY_MODE: Final = 0o700
_FILE_MODE: Final = 0o600


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where the files are, and until when the first certificate that expires is valid."""

    directory: Path
    valid_until: datetime
    made: tuple[str, ...] = ()
    """Pairs that were made now."""

    @property
    def ca(self) -> Path:
        """Certificate of the authority."""
        return self.directory / "ca.pem"

    @property
    def server(self) -> tuple[Path, Path]:
        """Certificate and key."""
        return _paths(self.directory, _SERVER)

    @property
    def admin(self) -> tuple[Path, Path]:
        """Certificate and key."""
        return _paths(self.directory, ADMIN)

    @property
    def admin_keystore(self) -> Path:
        """Key and certificate in one file."""
        return self.directory / _KEYSTORE

    def days_left(self, now: datetime) -> int:
        """Whole days until the first certificate expires."""
        return (self.valid_until - now).days


def names_of_this_host(more: Iterable[str]) -> tuple[str, ...]:
    """Return the host names and addresses that the server's certificate is for."""
    found = ["localhost", "127.0.0.1", "::1", socket.gethostname(), *more]
    return tuple(dict.fromkeys(name for name in found if name))


def prepare(data_dir: Path, more_hosts: Iterable[str], *, now: datetime | None = None) -> Certificates:
    """Return the certificates of a data directory; make what is not there.

    Args:
        data_dir: exists, and belongs to this user.
        more_hosts: names beside those of this host, by which clients connect.
        now: the time; None for that of the clock.

    Raises:
        OperatorFault: a half of a pair is missing, a file cannot be read or written, a certificate has expired, or it
            is for other names. The text says what to do.
    """
    need("cryptography", needed_by="serve --secure")
    moment = datetime.now(UTC) if now is None else now
    directory = data_dir / DIRECTORY
    try:
        made = _make_missing(directory, tuple(more_hosts), moment)
        return _checked(directory, tuple(more_hosts), moment, made)
    except OSError as error:
        raise OperatorFault(f"serve --secure: {error.filename or directory}: {error.strerror}") from error


def _make_missing(directory: Path, more_hosts: Sequence[str], now: datetime) -> tuple[str, ...]:
    if not directory.exists():
        temporary = directory.with_name(f"{DIRECTORY}.new-{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(mode=_DIRECTORY_MODE)
        try:
            _make(temporary, _PAIRS, more_hosts, now)
            os.rename(temporary, directory)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        return _PAIRS
    _check_private(directory)
    missing = []
    for pair in _PAIRS:
        absent = [path for path in _paths(directory, pair) if not path.exists()]
        if len(absent) == 1:
            (there,) = set(_paths(directory, pair)) - set(absent)
            raise OperatorFault(
                f"serve --secure: {absent[0]} is missing, and {there} is there: put it back, or remove the other one,"
                " too, to have both made again"
            )
        if absent:
            missing.append(pair)
    if _CA in missing and len(missing) < len(_PAIRS):
        raise OperatorFault(
            f"serve --secure: {directory}/ca.pem and ca.key are missing, and other certificates are there: put them"
            f" back, or remove {directory} to have all of them made again"
        )
    _make(directory, missing, more_hosts, now)
    return tuple(missing)


def _check_private(directory: Path) -> None:
    found = directory.lstat()
    if not directory.is_dir() or directory.is_symlink() or found.st_uid != os.geteuid():
        raise OperatorFault(f"serve --secure: {directory} is not a directory of this user")
    if found.st_mode & 0o077:
        directory.chmod(_DIRECTORY_MODE)
    for path in directory.iterdir():
        if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o077:
            path.chmod(_FILE_MODE)


def _make(directory: Path, pairs: Sequence[str], more_hosts: Sequence[str], now: datetime) -> None:
    if not pairs:
        return
    from cryptography.x509.oid import ExtendedKeyUsageOID

    if _CA in pairs:
        key = _new_key()
        _write_pair(directory, _CA, _authority(key, now), key)
    ca_key, ca = _read_key(directory / "ca.key"), _read_certificate(directory / "ca.pem")
    if _SERVER in pairs:
        key = _new_key()
        names = names_of_this_host(more_hosts)
        usage = ExtendedKeyUsageOID.SERVER_AUTH
        _write_pair(
            directory, _SERVER, _signed("localhost", key, ca, ca_key, usage=usage, now=now, names=names), key
        )
    if ADMIN in pairs:
        key = _new_key()
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        (directory / _KEYSTORE).unlink(missing_ok=True)
        _write_pair(directory, ADMIN, _signed(ADMIN, key, ca, ca_key, usage=usage, now=now), key)
        certificate, key_file = _paths(directory, ADMIN)
        _write(directory / _KEYSTORE, key_file.read_bytes() + certificate.read_bytes())


def _new_key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _builder(name: str, issuer: x509.Name | None, now: datetime, days: int) -> x509.CertificateBuilder:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS_DIFFER)
        .not_valid_after(now + timedelta(days=days))
    )


def _authority(key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    # Two authorities with one name and different keys would be taken for each other.
    name = f"appliance demonstration authority {os.urandom(4).hex()}"
    return (
        _builder(name, None, now, AUTHORITY_DAYS)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, SHA256())
    )


def _signed(
    name: str,
    key: EllipticCurvePrivateKey,
    ca: x509.Certificate,
    ca_key: EllipticCurvePrivateKey,
    *,
    usage: x509.ObjectIdentifier,
    now: datetime,
    names: Sequence[str] = (),
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256

    builder = (
        _builder(name, ca.subject, now, CERTIFICATE_DAYS)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
    )
    if names:
        listed = x509.SubjectAlternativeName([_general_name(each) for each in names])
        builder = builder.add_extension(listed, critical=False)
    return builder.sign(ca_key, SHA256())


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _checked(
    directory: Path, more_hosts: Sequence[str], now: datetime, made: tuple[str, ...]
) -> Certificates:
    """Refuse what no client could use."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    ca = _read_certificate(directory / "ca.pem")
    ends = [ca.not_valid_after_utc]
    for pair in _PAIRS:
        path, key_path = _paths(directory, pair)
        certificate = _read_certificate(path)
        again = f"remove {path.name} and {key_path.name} in {directory} to have both made again"
        if _read_key(key_path).public_key() != certificate.public_key():
            raise OperatorFault(f"serve --secure: {key_path} does not belong to {path}: {again}")
        try:
            certificate.verify_directly_issued_by(ca)
        except (ValueError, TypeError, InvalidSignature):
            raise OperatorFault(
                f"serve --secure: {path} is not signed by {directory}/ca.pem: {again}"
            ) from None
        if certificate.not_valid_after_utc <= now:
            all_again = f"remove {directory} to have all of them made again" if pair == _CA else again
            raise OperatorFault(
                f"serve --secure: {path} has expired on {_shown(certificate.not_valid_after_utc)}: {all_again}"
            )
        ends.append(certificate.not_valid_after_utc)
    keystore = directory / _KEYSTORE
    if not keystore.exists():
        certificate_file, key_file = _paths(directory, ADMIN)
        _write(keystore, key_file.read_bytes() + certificate_file.read_bytes())
    server = _read_certificate(directory / "server.pem")
    listed = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    for host in more_hosts:
        if _general_name(host) not in list(listed):
            raise OperatorFault(
                f"serve --secure: {directory}/server.pem is not for the name {host}: remove server.pem and server.key"
                " there to have both made again"
            )
    return Certificates(directory, min(ends), made)


def _shown(moment: datetime) -> str:
    return moment.date().isoformat()


def _paths(directory: Path, pair: str) -> tuple[Path, Path]:
    """Certificate and key."""
    return directory / f"{pair}.pem", directory / f"{pair}.key"


def _read_certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError as error:
        raise OperatorFault(f"serve --secure: {path} is no certificate in PEM format") from error


def _read_key(path: Path) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError) as error:
        raise OperatorFault(f"serve --secure: {path} is no unencrypted private key in PEM format") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise OperatorFault(
            f"serve --secure: {path} is not a key on an elliptic curve, as this command makes"
        )
    return key


def _write_pair(
    directory: Path, pair: str, certificate: x509.Certificate, key: EllipticCurvePrivateKey
) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    certificate_file, key_file = _paths(directory, pair)
    _write(key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write(certificate_file, certificate.public_bytes(Encoding.PEM))


def _write(path: Path, text: bytes) -> None:
    """Write a file of mode 0600 that is not there yet, whole or not at all."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE
    )
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.rename(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
