"""Signatures of runs: whoever holds the federation's key says what devices run, and nobody else."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest

from catchment.errors import UserError
from catchment.keys.keys import check_signature, make_device_key, make_federation_key, sign_run

DIGEST = "ab" * 32


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    make_federation_key(tmp_path)
    return tmp_path


def test_what_was_signed_is_accepted_and_nothing_else(federation: Path) -> None:
    signature = sign_run(federation / "federation.key", "mine", DIGEST)
    check_signature(federation / "federation.pub", "mine", DIGEST, signature)
    for name, digest in (("other", DIGEST), ("mine", "cd" * 32), (f'mine", "{DIGEST}', ""), ("", DIGEST)):
        with pytest.raises(UserError, match="the run is not signed by the key"):
            check_signature(federation / "federation.pub", name, digest, signature)


def test_another_key_and_damaged_signatures_are_refused(federation: Path) -> None:
    make_device_key(federation / "other.key")
    signature = sign_run(federation / "federation.key", "mine", DIGEST)
    flipped = bytearray(base64.b64decode(signature))
    flipped[-1] ^= 1
    for given in (
        sign_run(federation / "other.key", "mine", DIGEST),
        base64.b64encode(flipped).decode(),
        signature[:-4],
        "no base64!",
        "Schlüssel",
        "",
    ):
        with pytest.raises(UserError, match=r"is not signed by the key of .*federation\.pub; if its server has"):
            check_signature(federation / "federation.pub", "mine", DIGEST, given)


def test_a_federation_key_stays_and_is_its_owners(federation: Path) -> None:
    before = {path.name: path.read_bytes() for path in federation.iterdir()}
    assert set(before) == {"federation.key", "federation.pub"}
    assert stat.S_IMODE((federation / "federation.key").stat().st_mode) == 0o600
    make_federation_key(federation)
    assert {path.name: path.read_bytes() for path in federation.iterdir()} == before


def test_a_device_makes_its_own_key_and_never_replaces_one(tmp_path: Path) -> None:
    assert make_device_key(tmp_path / "device.key") == tmp_path / "device.pub"
    assert stat.S_IMODE((tmp_path / "device.key").stat().st_mode) == 0o600
    with pytest.raises(UserError, match=r"device\.key is there already, and a key is never replaced"):
        make_device_key(tmp_path / "device.key")
    (tmp_path / "device.key").unlink()
    with pytest.raises(UserError, match=r"device\.pub is there already, and a key is never replaced"):
        make_device_key(tmp_path / "device.key")
    assert not (tmp_path / "device.key").exists()
    with pytest.raises(UserError, match=r"other\.pub would be the name of the public half"):
        make_device_key(tmp_path / "other.pub")
