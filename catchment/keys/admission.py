"""Who may join: the server's folder holds `client-K.pub` of every client, and what was revoked in `revoked/`.

A running federation reads the folder again every few seconds, so every change is one rename.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from catchment.errors import UserError, needs
from catchment.keys.files import check_private, write_public
from catchment.keys.keys import fingerprint, public_line, read_public

with needs("a key", "device"):
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CURRENT = re.compile(r"client-(\d+)\.pub")
REVOKED = re.compile(r"client-(\d+)-(\d{4}-\d\d-\d\d)-[0-9a-f]{8}\.pub")  # client, day, start of the hash


@dataclass(frozen=True)
class Admission:
    """A client's key: since when it is known, and the day on which it was revoked, if it was."""

    client: int
    fingerprint: str
    since: datetime
    revoked: str | None


def admissions(directory: Path) -> list[Admission]:
    """Every key that was ever admitted, by client; the one that counts is the last of its client."""
    _check_folder(directory)
    found = []
    for path in [*directory.glob("revoked/*.pub"), *directory.glob("client-*.pub")]:
        revoked, current = REVOKED.fullmatch(path.name), CURRENT.fullmatch(path.name)
        match = current or revoked
        if match is not None:
            since = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            day = None if revoked is None else revoked[2]
            found.append(Admission(int(match[1]), fingerprint(path), since, day))
    return sorted(found, key=lambda one: (one.client, one.revoked is None, one.since))


def admitted_keys(directory: Path, clients: int, before: Mapping[bytes, int] | None = None) -> dict[bytes, int]:
    """Who may join now: public keys in PEM, as devices send them, and whose they are.

    Only a key whose file is missing is revoked. While a file cannot be read for any other reason, because it is being
    written or too many files are open, the client keeps the key that it had `before`.
    """
    known = {client: key for key, client in (before or {}).items()}
    if not directory.is_dir():
        return dict(before or {})
    found = {}
    for client in range(clients):
        path = directory / f"client-{client}.pub"
        if not path.exists():
            continue
        try:
            found[read_public(path).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)] = client
        except UserError:
            if client in known:
                found[known[client]] = client
    return found


def admit(directory: Path, public: Path, client: int, *, replace: bool = False) -> None:
    """Let a device with this public key join as a client; `replace` revokes the key that the client has."""
    _check_folder(directory)
    if client < 0:
        raise UserError(f"client {client} was given; the first client is 0")
    mine = fingerprint(public)
    for known in admissions(directory):
        if known.fingerprint == mine and known.revoked is not None:
            raise UserError(
                f"{public} was revoked on {known.revoked} as the key of client {known.client}; make a new one on the "
                "device: catchment key NAME"
            )
        if known.fingerprint == mine:
            raise UserError(f"{public} is the key of client {known.client} already; every client has a key of its own")
    target = directory / f"client-{client}.pub"
    if target.exists():
        if not replace:
            raise UserError(
                f"client {client} has a key already ({fingerprint(target)}); to revoke it in favour of {public}, give "
                "--replace"
            )
        _archive(target)
    write_public(target, public_line(read_public(public), target.stem))


def revoke(directory: Path, client: int) -> None:
    """Stop admitting the key that a client has."""
    _check_folder(directory)
    path = directory / f"client-{client}.pub"
    if not path.exists():
        known = ", ".join(str(one.client) for one in admissions(directory) if one.revoked is None)
        raise UserError(f"client {client} has no key in {directory}; those with one are: {known or 'none'}")
    _archive(path)
    path.unlink()


def _archive(public: Path) -> None:
    """Keep a copy of a key that is revoked, with the day in its name, and of a private half that was left here."""
    folder = public.parent / "revoked"
    folder.mkdir(mode=0o700, exist_ok=True)
    day = datetime.now(UTC).date().isoformat()
    name = f"{public.stem}-{day}-{hashlib.sha256(public.read_bytes()).hexdigest()[:8]}"
    private = public.with_suffix(".key")
    if private.exists():
        private.rename(folder / f"{name}.key")
    shutil.copy2(public, folder / f"{name}.pub")


def _check_folder(directory: Path) -> None:
    for name in ("server.crt", "federation.pub"):
        if not (directory / name).exists():
            raise UserError(
                f"{directory} has no {name}; make what is missing with: catchment keys {directory} --host NAME"
            )
    check_private(directory)
