"""Certificates of a federation: an authority of its own (`ca.crt`, `ca.key`) signs the server's certificate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from catchment.errors import UserError, needs
from catchment.keys.files import read, write_private, write_public

with needs("a certificate", "server"):
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Host = str | IPv4Address | IPv6Address

ALWAYS: tuple[Host, ...] = ("localhost", ip_address("127.0.0.1"), ip_address("::1"))
LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")  # of a DNS name
AUTHORITY_DAYS, SERVER_DAYS = 3650, 730
SOON = timedelta(days=30)
SLOW_CLOCK = timedelta(days=1)  # certificates are valid from this much earlier on, as small devices often have no clock


def make_certificates(directory: Path, hosts: Sequence[Host]) -> list[Path]:
    """Make the authority and the server's certificate, where they are missing; returns the new files.

    `hosts` are the names and addresses under which devices reach the server, besides this machine's own. A certificate
    that is there stays, and must be valid and for these hosts.
    """
    wanted = list(dict.fromkeys([*ALWAYS, *hosts]))
    certificate, key = directory / "ca.crt", directory / "ca.key"
    if (directory / "server.crt").exists():
        check_certificate(directory)
        _check_hosts(directory, wanted)
        return []
    if (directory / "server.key").exists():
        raise UserError(f"{directory} has server.key but no server.crt; remove server.key to get new ones of both")
    made = []
    if not certificate.exists() and not key.exists():
        own_key = ec.generate_private_key(ec.SECP384R1())
        made += [write_private(key, _pem(own_key)), _write_certificate(certificate, _authority(own_key))]
    for here, other in ((certificate, key), (key, certificate)):
        if not other.exists():
            raise UserError(
                f"{directory} has {here.name} but no {other.name}, and a server certificate is signed with both; bring "
                f"{other.name} back, or start in another directory (all devices then need the new ca.crt)"
            )
    authority = _certificate(certificate)
    authority_key = _private(key)
    if authority_key.public_key() != authority.public_key():
        raise UserError(f"{key} is not the key of {certificate}; bring back the one that was made with it")
    server_key = ec.generate_private_key(ec.SECP384R1())
    server = _server(server_key, wanted, authority, authority_key)
    return [
        *made,
        write_private(directory / "server.key", _pem(server_key)),
        _write_certificate(directory / "server.crt", server),
    ]


def check_certificate(directory: Path) -> list[str]:
    """Refuse a server's certificate that no device would trust; returns warnings about one that expires soon."""
    for name in ("server.crt", "server.key", "ca.crt"):
        if not (directory / name).exists():
            raise UserError(f"{directory} has no {name}; bring it back, or start in another directory")
    authority, certificate = _certificate(directory / "ca.crt"), _certificate(directory / "server.crt")
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise UserError(
            f"{directory / 'server.crt'} is not signed by {directory / 'ca.crt'}; bring back the pair that belongs "
            "together, as devices trust only what their ca.crt signed"
        ) from None
    if _private(directory / "server.key").public_key() != certificate.public_key():
        raise UserError(
            f"{directory / 'server.key'} is not the key of {directory / 'server.crt'}; bring back the one made with it"
        )
    warnings = []
    now = datetime.now(UTC)
    for name, given, fix in (
        ("ca.crt", authority, "make keys in another directory, and give every device the new ca.crt"),
        ("server.crt", certificate, _renewal(directory, _hosts(certificate))),
    ):
        end = given.not_valid_after_utc
        if now < given.not_valid_before_utc:
            raise UserError(
                f"{directory / name} is not valid before {given.not_valid_before_utc:%Y-%m-%d}, and this machine's "
                f"clock says {now:%Y-%m-%d}; set the clock, or {fix}"
            )
        if end < now:
            raise UserError(f"{directory / name} expired on {end:%Y-%m-%d}; {fix}")
        if end < now + SOON:
            warnings.append(f"{directory / name} expires on {end:%Y-%m-%d}; {fix}")
    return warnings


def validity(directory: Path) -> str:
    """For whom the server's certificate is, and until when; for people."""
    certificate = _certificate(directory / "server.crt")
    return f"server.crt is for {', '.join(_hosts(certificate))}, until {certificate.not_valid_after_utc:%Y-%m-%d}"


def _check_hosts(directory: Path, wanted: Sequence[Host]) -> None:
    known = _hosts(_certificate(directory / "server.crt"))
    missing = [str(host) for host in wanted if str(host) not in known]
    if missing:
        raise UserError(
            f"{directory / 'server.crt'} is for {', '.join(known)}, not for {', '.join(missing)}; for one with all "
            f"hosts, {_renewal(directory, [*known, *missing])}"
        )


def _hosts(certificate: x509.Certificate) -> list[str]:
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def _renewal(directory: Path, hosts: Sequence[str]) -> str:
    own = [str(host) for host in ALWAYS]
    options = [f"--host {host}" for host in hosts if host not in own] or ["--clients 0"]
    return (
        f"put ca.key into {directory}, remove server.crt and server.key from it, and run: "
        f"catchment keys {directory} {' '.join(options)} (ca.crt and the clients' keys stay)"
    )


# ---- X.509 ------------------------------------------------------------------------------------------------------


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


# ---- files and input --------------------------------------------------------------------------------------------


def _certificate(path: Path) -> x509.Certificate:
    return read(path, x509.load_pem_x509_certificate)


def _private(path: Path) -> EllipticCurvePrivateKey:
    key = read(path, lambda pem: load_pem_private_key(pem, None))
    if not isinstance(key, EllipticCurvePrivateKey):
        raise UserError(f"{path} is a key of another kind; ECDSA over P-384 is expected, as catchment keys makes it")
    return key


def _write_certificate(path: Path, certificate: x509.Certificate) -> Path:
    return write_public(path, certificate.public_bytes(Encoding.PEM))


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def parse_host(text: str) -> Host:
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
