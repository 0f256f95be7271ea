"""Who may join: devices are admitted with keys of their own, and these are rotated and revoked."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from catchment.cli import main, output
from catchment.errors import UserError
from catchment.keys import admission
from catchment.keys.admission import admissions, admit, admitted_keys, revoke
from catchment.keys.keys import fingerprint, make_device_key, make_keys

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def server(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", 0, [])
    return tmp_path / "keys"


@pytest.fixture
def devices(tmp_path: Path) -> list[Path]:
    return [make_device_key(tmp_path / f"device-{number}.key") for number in range(3)]


@pytest.fixture
def catchment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(output.console, "width", 120)

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["catchment", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out, err

    return call


def known(directory: Path) -> list[tuple[int, str, bool]]:
    return [(one.client, one.fingerprint, one.revoked is None) for one in admissions(directory)]


def test_a_device_is_admitted_with_its_own_key(server: Path, devices: list[Path]) -> None:
    admit(server, devices[0], 1)
    admit(server, devices[1], 0)
    assert known(server) == [(0, fingerprint(devices[1]), True), (1, fingerprint(devices[0]), True)]
    kind, key, _ = devices[0].read_text().split()
    assert (server / "client-1.pub").read_text() == f"{kind} {key} client-1\n"
    assert not list(server.glob("*.part"))
    assert not list(server.glob("client-*.key"))


def test_a_key_is_one_clients_and_a_client_has_one_key(server: Path, devices: list[Path]) -> None:
    admit(server, devices[0], 0)
    with pytest.raises(UserError, match=r"device-0\.pub is the key of client 0 already"):
        admit(server, devices[0], 1, replace=True)
    with pytest.raises(UserError, match=r"client 0 has a key already \(SHA256:\S+\); .*give --replace"):
        admit(server, devices[1], 0)
    assert known(server) == [(0, fingerprint(devices[0]), True)]


def test_rotation_revokes_the_key_that_was_there(
    server: Path, devices: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(server, devices[0], 0)
    seen = []
    write = admission.write_public
    monkeypatch.setattr(
        admission, "write_public", lambda *given: (seen.append((server / "client-0.pub").exists()), write(*given))
    )
    admit(server, devices[1], 0, replace=True)
    assert seen == [True]  # at no moment is the client without a key
    assert known(server) == [(0, fingerprint(devices[0]), False), (0, fingerprint(devices[1]), True)]


def test_a_revoked_key_does_not_come_back(server: Path, devices: list[Path]) -> None:
    admit(server, devices[0], 0)
    admit(server, devices[1], 1)
    os.utime(server / "client-0.pub", (0, 0))
    revoke(server, 0)
    assert admissions(server)[0].since == datetime(1970, 1, 1, tzinfo=UTC)
    assert not (server / "client-0.pub").exists()
    assert known(server) == [(0, fingerprint(devices[0]), False), (1, fingerprint(devices[1]), True)]
    (path,) = (server / "revoked").iterdir()
    assert re.fullmatch(r"client-0-20\d\d-\d\d-\d\d-[0-9a-f]{8}\.pub", path.name)
    with pytest.raises(UserError, match=r"device-0\.pub was revoked on .* as the key of client 0; make a new one"):
        admit(server, devices[0], 2)
    with pytest.raises(UserError, match=r"client 0 has no key in .*keys; those with one are: 1"):
        revoke(server, 0)
    admit(server, devices[2], 0)
    assert known(server)[1] == (0, fingerprint(devices[2]), True)


def test_the_server_routine_lets_in_whom_the_folder_names(server: Path, devices: list[Path]) -> None:
    admit(server, devices[0], 0)
    admit(server, devices[1], 1)
    before = admitted_keys(server, 2)
    assert sorted(before.values()) == [0, 1]
    admit(server, devices[2], 0, replace=True)
    revoke(server, 1)
    after = admitted_keys(server, 2)
    assert list(after.values()) == [0]
    assert not before.keys() & after.keys()


def test_a_key_that_cannot_be_read_is_not_a_revocation(server: Path, devices: list[Path]) -> None:
    for client in range(2):
        admit(server, devices[client], client)
    before = admitted_keys(server, 3)
    (server / "client-0.pub").write_bytes(b"half of a k")
    (server / "client-1.pub").rename(server / "client-2.pub")
    again = admitted_keys(server, 3, before)
    assert sorted(again.values()) == [0, 2]
    assert [key for key, client in again.items() if client == 0] == [
        key for key, client in before.items() if client == 0
    ]
    assert admitted_keys(server, 3) == {key: 2 for key, client in before.items() if client == 1}
    server.rename(server.with_name("unmounted"))
    assert admitted_keys(server, 3, before) == before


def test_with_too_many_open_files_everybody_stays_admitted(
    server: Path, devices: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(server, devices[0], 0)
    before = admitted_keys(server, 2)

    def full(*_: object) -> bytes:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", full)
    assert admitted_keys(server, 2, before) == before


def test_a_private_half_left_on_the_server_goes_with_the_public_one(server: Path) -> None:
    make_keys(server, 1, [])
    old = fingerprint(server / "client-0.pub")
    revoke(server, 0)
    make_keys(server, 1, [])
    assert fingerprint(server / "client-0.pub") != old
    assert {path.suffix for path in (server / "revoked").iterdir()} == {".key", ".pub"}


def test_what_is_no_public_key_of_the_right_kind_is_refused(server: Path, devices: list[Path], tmp_path: Path) -> None:
    public = ed25519.Ed25519PrivateKey.generate().public_key()
    (tmp_path / "other.pub").write_bytes(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    (tmp_path / "text.pub").write_text("hello")
    for file, expected in (
        (tmp_path / "other.pub", r"other\.pub is a public key of another kind; ECDSA over P-384 is expected"),
        (tmp_path / "text.pub", r"text\.pub cannot be read as what its name says"),
        (tmp_path / "nowhere.pub", r"nowhere\.pub cannot be read as what its name says: No such file"),
        (devices[0].with_suffix(".key"), r"device-0\.key is a private key, which must not leave its device"),
    ):
        with pytest.raises(UserError, match=expected):
            admit(server, file, 0)
    with pytest.raises(UserError, match="client -1 was given; the first client is 0"):
        admit(server, devices[0], -1)
    with pytest.raises(UserError, match=r"nowhere has no server\.crt; make what is missing with: catchment keys"):
        admit(tmp_path / "nowhere", devices[0], 0)
    assert admissions(server) == []


def test_the_life_of_a_key_by_commands(catchment: Command, tmp_path: Path) -> None:
    assert catchment("keys", "server", "--host", "fl.example.org")[0] == 0
    assert sorted(path.name for path in (tmp_path / "server").iterdir()) == [
        "ca.crt", "ca.key", "federation.key", "federation.pub", "server.crt", "server.key",
    ]  # fmt: skip
    code, out, _ = catchment("key", "device.key")
    assert code == 0
    first = fingerprint(tmp_path / "device.pub")
    assert f"  {first}\n" in out
    assert "  catchment keys DIR --add device.pub --client-id K\n" in out
    code, _, err = catchment("key", "device.key")
    assert (code, err) == (2, "error: device.key is there already, and a key is never replaced; give another name\n")
    assert catchment("keys", "server", "--add", "device.pub", "--client-id", "3")[0] == 0
    catchment("key", "new.key")
    assert catchment("keys", "server", "--add", "new.pub", "--client-id", "3")[0] == 2
    assert catchment("keys", "server", "--add", "new.pub", "--client-id", "3", "--replace")[0] == 0
    assert catchment("keys", "server", "--revoke", "3")[0] == 0
    code, out, _ = catchment("keys", "server")
    assert code == 0
    rows = re.findall(r"│ (\d+) +│ (SHA256:\S+) +│ 20\d\d-\d\d-\d\d +│ 20\d\d-\d\d-\d\d +│", out)
    assert set(rows) == {("3", first), ("3", fingerprint(tmp_path / "new.pub"))}
    assert re.search(r"server\.crt is for .*fl\.example\.org, until 20\d\d-\d\d-\d\d\n", out)
    assert f"federation.pub is {fingerprint(tmp_path / 'server/federation.pub')}\n" in out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--add", "device.pub"], "--add FILE and --client-id K go together"),
        (["--client-id", "1"], "--add FILE and --client-id K go together"),
        (["--replace"], "--replace only with them"),
        (["--revoke", "1", "--host", "a.org"], "one thing at a time"),
        (["--clients", "0", "--add", "device.pub", "--client-id", "1"], "one thing at a time"),
        ([], "server has no server.crt; make what is missing with: catchment keys server --host NAME"),
    ],
)
def test_options_that_do_not_go_together(catchment: Command, options: list[str], expected: str) -> None:
    code, _, err = catchment("keys", "server", *options)
    assert code == 2
    assert expected in err
