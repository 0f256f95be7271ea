"""Keys and certificates of a federation: devices know that it is their server, the server which devices may join.

A certificate authority of one's own (`ca.crt`, `ca.key`) signs the server's certificate (`server.crt`, `server.key`);
each client has a pair of ECDSA keys over P-384 (`client-K.key`, `client-K.pub`), in the format of OpenSSH. With a pair
of the same kind, `federation.key` and `federation.pub`, the server signs what it runs and devices know what to run.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import stat
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import TypeVar

from catchment.errors import UserError, needs

with needs("making keys", "server"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_pem_private_key,
        load_ssh_private_key,
        load_ssh_public_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

T = TypeVar("T")
Host = str | IPv4Address | IPv6Address

ALWAYS: tuple[Host, ...] = ("localhost", ip_address("127.0.0.1"), ip_address("::1"))
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")  # of a DNS name
CURVE = "secp384r1"
AUTHORITY_DAYS, SERVER_DAYS = 3650, 730
SLOW_CLOCK = timedelta(days=1)  # certificates begin so much earlier, as small devices often have no clock of their own


def make_keys(directory: Path, clients: int, hosts: Sequence[str]) -> list[Path]:
    """Make the keys and certificates that a directory lacks; returns the new files.

    `hosts` are the names and addresses under which devices reach the server, besides this machine's own. Nothing is
    ever replaced: a directory that has keys gets those of the clients that are new, and keeps its certificates. A
    client counts as there if its public key is, as private keys move to the devices.
    """
    if clients < 1:
        raise UserError(f"keys for {clients} clients were asked for; at least 1 is expected")
    wanted = list(dict.fromkeys([*ALWAYS, *map(_host, hosts)]))
    _open_directory(directory)
    made: list[Path] = []
    if (directory / "server.crt").exists():
        _check_server(directory, wanted)
    else:
        made += _make_certificates(directory, wanted)
    for client in range(clients):
        made += _make_pair(directory / f"client-{client}.key", directory / f"client-{client}.pub")
    return made


# ---- certificates -----------------------------------------------------------------------------------------------


def _make_certificates(directory: Path, hosts: Sequence[Host]) -> list[Path]:
    """The authority, if there is none yet, and the server's certificate."""
    certificate, key = directory / "ca.crt", directory / "ca.key"
    if (directory / "server.key").exists():
        raise UserError(f"{directory} has server.key but no server.crt; remove server.key to get new ones of both")
    made = []
    if not certificate.exists() and not key.exists():
        own_key = ec.generate_private_key(ec.SECP384R1())
        made += [_write(key, _pem(own_key)), _write_certificate(certificate, _authority(own_key))]
    for here, other in ((certificate, key), (key, certificate)):
        if not other.exists():
            raise UserError(
                f"{directory} has {here.name} but no {other.name}, and a server certificate is signed with both; bring "
                f"{other.name} back, or start in another directory (all devices then need the new ca.crt)"
            )
    authority = _read(certificate, x509.load_pem_x509_certificate)
    authority_key = _read(key, lambda pem: load_pem_private_key(pem, None))
    is_own = authority_key.public_key() == authority.public_key()
    if not (is_own and isinstance(authority_key, EllipticCurvePrivateKey)):
        raise UserError(f"{key} is not the key of {certificate}; bring back the one that was made with it")
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = _server(server_key, hosts, authority, authority_key)
    return [
        *made,
        _write(directory / "server.key", _pem(server_key)),
        _write_certificate(directory / "server.crt", server),
    ]


def _authority(key: EllipticCurvePrivateKey) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Catchment federation")])
    builder = _builder(name, name, key, AUTHORITY_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
    return builder.sign(key, SHA384())


def _server(
    key: EllipticCurvePrivateKey,
    hosts: Sequence[Host],
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Catchment server")])
    names = [x509.DNSName(host) if isinstance(host, str) else x509.IPAddress(host) for host in hosts]
    builder = _builder(name, authority.subject, key, SERVER_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    issuer = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False
    )
    return builder.sign(authority_key, SHA384())


def _builder(subject: x509.Name, issuer: x509.Name, key: EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number(), now - SLOW_CLOCK, now + timedelta(days)
    ).add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _check_server(directory: Path, wanted: Sequence[Host]) -> None:
    """Refuse a server certificate that is not for these hosts, is too old, or has lost its company."""
    again = f"remove server.crt and server.key from {directory} and run this again (ca.crt and the clients' keys stay)"
    for name in ("ca.crt", "server.key"):
        if not (directory / name).exists():
            raise UserError(f"{directory} has server.crt but no {name}; bring it back, or start in another directory")
    certificate = _read(directory / "server.crt", x509.load_pem_x509_certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    known = {*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress)}
    missing = [str(host) for host in wanted if host not in known]
    if missing:
        raise UserError(
            f"{directory / 'server.crt'} is for {', '.join(sorted(map(str, known)))}, not for {', '.join(missing)}; "
            f"for a certificate with all hosts, {again}"
        )
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise UserError(
            f"{directory / 'server.crt'} was valid until {certificate.not_valid_after_utc:%Y-%m-%d}; {again}"
        )


# ---- pairs of keys ----------------------------------------------------------------------------------------------


def make_device_key(path: Path) -> Path:
    """Make a device's private key, and its public half beside it (`device.key`, `device.pub`); returns the latter."""
    public = path.with_suffix(".pub")
    if path == public:
        raise UserError(f"{path} would be the name of the public half; name the private one, such as device.key")
    for file in (path, public):
        if file.exists():
            raise UserError(f"{file} is there already, and a key is never replaced; give another name, or remove it")
    _make_pair(path, public)
    return public


def make_federation_key(folder: Path) -> None:
    """Make `federation.key`, which signs runs, and `federation.pub`, which devices keep; a pair that is there stays."""
    _make_pair(folder / "federation.key", folder / "federation.pub")


def _make_pair(private: Path, public: Path) -> list[Path]:
    """A pair, or the public half of the private one that is there."""
    if public.exists():
        return []
    made = []
    if not private.exists():
        pem = ec.generate_private_key(ec.SECP384R1()).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        made.append(_write(private, pem))
    line = _private(private).public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return [*made, _write(public, line + f" {public.stem}\n".encode(), public=True)]


def _private(path: Path) -> EllipticCurvePrivateKey:
    key = _read(path, lambda pem: load_ssh_private_key(pem, None))
    if not (isinstance(key, EllipticCurvePrivateKey) and key.curve.name == CURVE):
        raise UserError(
            f"{path} is a private key of another kind; ECDSA over P-384 is expected (catchment key makes one)"
        )
    return key


def _public(path: Path) -> EllipticCurvePublicKey:
    key = _read(path, load_ssh_public_key)
    if not (isinstance(key, EllipticCurvePublicKey) and key.curve.name == CURVE):
        raise UserError(
            f"{path} is a public key of another kind; ECDSA over P-384 is expected (catchment key makes one)"
        )
    return key


# ---- signatures -------------------------------------------------------------------------------------------------


def sign_run(federation_key: Path, federation: str, digest: str) -> str:
    """The federation's signature, as text, below the digest of an experiment that it runs."""
    signature = _private(federation_key).sign(_statement(federation, digest), ec.ECDSA(SHA384()))
    return base64.b64encode(signature).decode()


def check_signature(federation_pub: Path, federation: str, digest: str, signature: str) -> None:
    """Refuse a run that whoever holds the federation's key has not signed."""
    key = _public(federation_pub)
    try:
        key.verify(base64.b64decode(signature, validate=True), _statement(federation, digest), ec.ECDSA(SHA384()))
    except (InvalidSignature, binascii.Error, ValueError):
        given = "is not signed" if not signature else "has a signature of somebody else"
        raise UserError(
            f"the run {given}: one by the key of {federation_pub} is expected; if the server has a new key, ask whoever runs "
            "it for its federation.pub, and compare the fingerprints"
        ) from None


def _statement(federation: str, digest: str) -> bytes:
    return json.dumps(["catchment run", federation, digest]).encode()


# ---- files ------------------------------------------------------------------------------------------------------


def _open_directory(directory: Path) -> None:
    """Make the directory for its owner alone; refuse one that others can look into."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}") from None
    mode = stat.S_IMODE(directory.stat().st_mode)
    if os.name == "posix" and mode & 0o077:
        raise UserError(
            f"others may look into {directory} (its mode is {mode:04o}); private keys need a directory of their own: "
            f"name one that is not there yet, or chmod 700 {directory}"
        )


def _read(path: Path, load: Callable[[bytes], T]) -> T:
    try:
        return load(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read as what its name says: {error}; bring back the one that was made"
        ) from None


def _write(path: Path, content: bytes, *, public: bool = False) -> Path:
    """A new file; one that is there is never touched."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if public else 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from None
    return path


def _write_certificate(path: Path, certificate: x509.Certificate) -> Path:
    return _write(path, certificate.public_bytes(Encoding.PEM), public=True)


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


# ---- input ------------------------------------------------------------------------------------------------------


def _host(text: str) -> Host:
    """An address, or a name in lower case."""
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        pass
    name = text.lower()
    labels = name.split(".")
    if len(name) > 253 or not all(map(LABEL.fullmatch, labels)) or labels[-1].isdigit():  # 10.0.0.256 is no name
        raise UserError(
            f'host "{text}" is neither a name nor an address; give it alone, without port and scheme, such as '
            "fl.example.org or 192.0.2.7"
        )
    return name
