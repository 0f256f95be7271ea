"""Keys of a federation: devices can verify the server, and the server knows which devices may join.

An authority of its own (`ca.crt`, `ca.key`) signs the server's certificate (`server.crt`, `server.key`). A client
has a pair of ECDSA keys over P-384 in the format of OpenSSH (`device.key` on the device, `client-K.pub` on the server).
With a pair of the same kind, `federation.key` and `federation.pub`, the server signs every run.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from catchment.errors import UserError, needs
from catchment.files import private_directory
from catchment.keys.certificates import check_certificate, make_certificates, parse_host
from catchment.keys.files import check_private, read, write_private, write_public

with needs("a key", "device"):
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
        load_ssh_private_key,
        load_ssh_public_key,
    )

CURVE = "secp384r1"
EXPECTED = "ECDSA over P-384 is expected, as catchment key makes it"


# ---- the server's folder ----------------------------------------------------------------------------------------


def make_keys(directory: Path, clients: int, hosts: Sequence[str]) -> list[Path]:
    """Make the keys and certificates that a directory lacks; returns the new files.

    Nothing is ever replaced: a directory that has keys gets those of the clients that are new, and keeps its
    certificates. A client counts as there if its public key is, as private keys belong on the devices.
    """
    if clients < 0:
        raise UserError(f"keys for {clients} clients were asked for; at least 0 is expected")
    wanted = [parse_host(host) for host in hosts]
    _open_directory(directory)
    made = make_certificates(directory, wanted)
    made += _make_pair(directory / "federation.key", directory / "federation.pub")
    for client in range(clients):
        made += _make_pair(directory / f"client-{client}.key", directory / f"client-{client}.pub")
    return made


def check_keys(directory: Path) -> list[str]:
    """Refuse a folder of keys with which no server should start; returns warnings for whoever starts it."""
    check_private(directory)
    private = sorted(directory.glob("*.key"))
    for path in private:
        check_private(path)
    warnings = check_certificate(directory)
    if not (directory / "federation.key").exists():
        raise UserError(
            f"{directory} has no federation.key, with which runs are signed; bring it back, or remove federation.pub "
            f"(if it is there), make both with: catchment keys {directory} --clients 0, and give devices the new one"
        )
    if read_private(directory / "federation.key").public_key() != read_public(directory / "federation.pub"):
        raise UserError(
            f"{directory / 'federation.key'} and federation.pub are not a pair; remove federation.pub and have it made "
            f"from the private half: catchment keys {directory} --clients 0"
        )
    if directory / "ca.key" in private:
        warnings.append(f"{directory / 'ca.key'} can sign another server for your devices; keep it offline, not here")
    strays = [path.name for path in private if path.name.startswith("client-")]
    if strays:
        warnings.append(
            f"{directory} holds private keys of clients ({', '.join(strays)}); move each to its device, keep no copy"
        )
    return warnings


def check_device_key(path: Path) -> None:
    """Refuse a device's private key that others may read, that belongs to somebody else, or that is not a key."""
    check_private(path)
    read_private(path)


def _open_directory(directory: Path) -> None:
    """Make the directory for its owner alone; refuse one that others can look into."""
    try:
        private_directory(directory)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}") from None
    check_private(directory)


# ---- pairs of keys ----------------------------------------------------------------------------------------------


def make_device_key(path: Path) -> Path:
    """Make a device's private key and, beside it, the public one (`device.key`, `device.pub`); returns the latter."""
    public = path.with_suffix(".pub")
    if path == public:
        raise UserError(f"{path} would be the name of the public half; name the private one, such as device.key")
    for file in (path, public):
        if file.exists():
            raise UserError(f"{file} is there already, and a key is never replaced; give another name")
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
        made.append(write_private(private, pem))
    return [*made, write_public(public, public_line(read_private(private).public_key(), public.stem))]


def public_line(key: EllipticCurvePublicKey, name: str) -> bytes:
    """The content of a file of a public key."""
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + f" {name}\n".encode()


def fingerprint(public: Path) -> str:
    """What people compare, as `ssh-keygen -lf` prints it."""
    blob = public_line(read_public(public), "").split()[1]
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def read_public(path: Path) -> EllipticCurvePublicKey:
    """The public key in a file; refused if it is of another kind, or the private half."""
    if b"PRIVATE KEY" in read(path, bytes):
        raise UserError(
            f"{path} is a private key, which must not leave its device; give the public half, which ends in .pub"
        )
    key = read(path, load_ssh_public_key)
    if not (isinstance(key, EllipticCurvePublicKey) and key.curve.name == CURVE):
        raise UserError(f"{path} is a public key of another kind; {EXPECTED}")
    return key


def read_private(path: Path) -> EllipticCurvePrivateKey:
    """The private key in a file; refused if it is of another kind."""
    key = read(path, lambda pem: load_ssh_private_key(pem, None))
    if not (isinstance(key, EllipticCurvePrivateKey) and key.curve.name == CURVE):
        raise UserError(f"{path} is a private key of another kind; {EXPECTED}")
    return key


# ---- signatures -------------------------------------------------------------------------------------------------


def sign_run(federation_key: Path, federation: str, digest: str) -> str:
    """The federation's signature, as text, of the digest of a run."""
    signature = read_private(federation_key).sign(_statement(federation, digest), ec.ECDSA(SHA384()))
    return base64.b64encode(signature).decode()


def check_signature(federation_pub: Path, federation: str, digest: str, signature: str) -> None:
    """Refuse a run that is not signed with the federation's key."""
    key = read_public(federation_pub)
    try:
        key.verify(base64.b64decode(signature, validate=True), _statement(federation, digest), ec.ECDSA(SHA384()))
    except (InvalidSignature, ValueError):
        raise UserError(
            f"the run is not signed by the key of {federation_pub}; if its server has a new key, get federation.pub "
            "from whoever runs it, and compare the fingerprints"
        ) from None


def _statement(federation: str, digest: str) -> bytes:
    return json.dumps(["catchment run", federation, digest]).encode()
