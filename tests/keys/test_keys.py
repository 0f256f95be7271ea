"""Keys and certificates: what TLS and Flower make of them, who may read them, and that none is ever replaced."""

from __future__ import annotations

import os
import re
import socket
import ssl
import stat
import sys
import threading
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
    load_ssh_public_key,
)
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from catchment import launch
from catchment.cli import main, runs
from catchment.errors import UserError
from catchment.keys import certificates
from catchment.keys.keys import check_device_key, check_keys, make_device_key, make_keys


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("federation") / "keys"
    make_keys(directory, 2, ["FL.example.org", "192.0.2.7"])
    return directory


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def at(monkeypatch: pytest.MonkeyPatch, later: timedelta) -> None:
    """Let certificates be looked at, and made, at another time than now."""

    class Then(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return datetime.now(UTC) + later

    monkeypatch.setattr(certificates, "datetime", Then)


# ---- what was made


def test_the_files_are_these_and_private_ones_are_the_owners(made: Path) -> None:
    private = {"ca.key", "server.key", "federation.key", "client-0.key", "client-1.key"}
    public = {"ca.crt", "server.crt", "federation.pub", "client-0.pub", "client-1.pub"}
    assert set(contents(made)) == private | public
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    for name in private:
        assert stat.S_IMODE((made / name).stat().st_mode) == 0o600, name


def test_a_tls_connection_stands_for_every_host_and_for_no_other(made: Path) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "server.crt", made / "server.key")
    client = ssl.create_default_context(cafile=made / "ca.crt")
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on

    def connect(host: str) -> str | None:
        ours, theirs = socket.socketpair()

        def serve() -> None:
            try:
                server.wrap_socket(theirs, server_side=True).close()
            except (ssl.SSLError, OSError):
                theirs.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with client.wrap_socket(ours, server_hostname=host) as secured:
                return secured.version()
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        finally:
            ours.close()
            thread.join()

    for host in ("fl.example.org", "192.0.2.7", "localhost", "127.0.0.1", "::1"):
        assert connect(host) == "TLSv1.3", host
    assert "mismatch" in str(connect("other.example.org"))
    assert "mismatch" in str(connect("192.0.2.8"))


def test_another_authority_is_not_believed(made: Path, tmp_path: Path) -> None:
    make_keys(tmp_path / "other", 1, ["fl.example.org"])
    leaf = certificate(made / "server.crt")
    for authority, good in ((made, True), (tmp_path / "other", False)):
        store = Store([certificate(authority / "ca.crt")])
        verifier = PolicyBuilder().store(store).build_server_verifier(x509.DNSName("fl.example.org"))
        if good:
            assert len(verifier.verify(leaf, [])) == 2
        else:
            with pytest.raises(VerificationError):
                verifier.verify(leaf, [])


def test_clients_have_pairs_that_flower_takes(made: Path) -> None:
    from flwr.cli.supernode.register import try_load_public_key

    publics = set()
    for k in range(2):
        private = load_ssh_private_key((made / f"client-{k}.key").read_bytes(), None)
        public = load_ssh_public_key((made / f"client-{k}.pub").read_bytes())
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        assert isinstance(public, ec.EllipticCurvePublicKey)
        assert private.curve.name == "secp384r1"
        public.verify(private.sign(b"it is me", ec.ECDSA(SHA256())), b"it is me", ec.ECDSA(SHA256()))
        assert try_load_public_key(made / f"client-{k}.pub") == private.public_key().public_bytes(
            Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
        )
        publics.add((made / f"client-{k}.pub").read_text())
    assert len(publics) == 2
    assert all(re.fullmatch(r"ecdsa-sha2-nistp384 \S+ client-[01]\n", line) for line in publics)


# ---- again


def test_more_clients_later_get_keys_and_nothing_else_changes(tmp_path: Path) -> None:
    first = make_keys(tmp_path / "keys", 1, ["a.example.org"])
    before = contents(tmp_path / "keys")
    assert {path.name for path in first} == set(before)
    assert make_keys(tmp_path / "keys", 1, []) == []
    assert contents(tmp_path / "keys") == before
    more = make_keys(tmp_path / "keys", 3, ["a.example.org"])
    assert [path.name for path in more] == ["client-1.key", "client-1.pub", "client-2.key", "client-2.pub"]
    assert {name: contents(tmp_path / "keys")[name] for name in before} == before


def test_keys_that_moved_away_are_not_made_again(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 2, [])
    (tmp_path / "keys/client-0.key").rename(tmp_path / "on the device")
    (tmp_path / "keys/ca.key").rename(tmp_path / "in the safe")
    public = (tmp_path / "keys/client-1.pub").read_bytes()
    (tmp_path / "keys/client-1.pub").unlink()
    assert [path.name for path in make_keys(tmp_path / "keys", 2, [])] == ["client-1.pub"]
    assert (tmp_path / "keys/client-1.pub").read_bytes() == public
    assert not (tmp_path / "keys/client-0.key").exists()


def test_other_hosts_than_those_of_the_certificate_are_refused_and_the_way_out_works(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    make_keys(directory, 1, ["a.example.org"])
    before = contents(directory)
    with pytest.raises(
        UserError, match=r"is for .*a\.example\.org.*, not for 10\.0\.0\.9; .*--host a\.example\.org --host 10"
    ):
        make_keys(directory, 2, ["a.example.org", "10.0.0.9"])
    assert contents(directory) == before
    (directory / "server.crt").unlink()
    with pytest.raises(UserError, match=r"has server\.key but no server\.crt; remove server\.key"):
        make_keys(directory, 1, ["10.0.0.9"])
    (directory / "server.key").unlink()
    assert [p.name for p in make_keys(directory, 1, ["a.example.org", "10.0.0.9"])] == ["server.key", "server.crt"]
    assert (directory / "ca.crt").read_bytes() == before["ca.crt"]
    certificate(directory / "server.crt").verify_directly_issued_by(certificate(directory / "ca.crt"))


def test_a_certificate_that_is_over_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_keys(tmp_path / "keys", 1, [])

    at(monkeypatch, timedelta(days=certificates.SERVER_DAYS + 1))
    with pytest.raises(UserError, match=r"server\.crt expired on 20\d\d-\d\d-\d\d; .*remove server\.crt"):
        make_keys(tmp_path / "keys", 1, [])


@pytest.mark.parametrize(
    ("gone", "expected"),
    [
        (["server.crt", "server.key", "ca.key"], r"has ca\.crt but no ca\.key, .*bring ca\.key back"),
        (["server.crt", "server.key", "ca.crt"], r"has ca\.key but no ca\.crt"),
        (["ca.crt"], r"has no ca\.crt; bring it back"),
        (["server.key"], r"has no server\.key; bring it back"),
    ],
)
def test_a_directory_that_lost_a_half_is_refused(tmp_path: Path, gone: list[str], expected: str) -> None:
    make_keys(tmp_path / "keys", 1, [])
    for name in gone:
        (tmp_path / "keys" / name).unlink()
    before = contents(tmp_path / "keys")
    with pytest.raises(UserError, match=expected):
        make_keys(tmp_path / "keys", 1, [])
    assert contents(tmp_path / "keys") == before


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", 1, [])
    make_keys(tmp_path / "other", 1, [])
    for name in ("server.crt", "server.key"):
        (tmp_path / "keys" / name).unlink()
    (tmp_path / "keys/ca.key").write_bytes((tmp_path / "other/ca.key").read_bytes())
    with pytest.raises(UserError, match=r"ca\.key is not the key of .*ca\.crt"):
        make_keys(tmp_path / "keys", 1, [])
    (tmp_path / "other/server.crt").write_text("nothing")
    with pytest.raises(UserError, match=r"server\.crt cannot be read as what its name says"):
        make_keys(tmp_path / "other", 1, [])


# ---- at the start of a server


@pytest.fixture
def server(tmp_path: Path) -> Path:
    """A folder as a server should have it."""
    make_keys(tmp_path / "keys", 0, ["fl.example.org"])
    (tmp_path / "keys/ca.key").rename(tmp_path / "ca.key")
    return tmp_path / "keys"


def test_a_folder_in_order_has_no_warnings_and_what_lies_about_is_named(server: Path, tmp_path: Path) -> None:
    assert check_keys(server) == []
    (tmp_path / "ca.key").rename(server / "ca.key")
    make_keys(server, 2, [])
    authority, clients = check_keys(server)
    assert re.search(r"ca\.key can sign another server for your devices; keep it offline", authority)
    assert re.search(r"keys of clients \(client-0\.key, client-1\.key\); move each to its device", clients)


def test_a_certificate_that_ends_within_a_month_is_a_warning_with_the_way_out(
    server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(monkeypatch, timedelta(days=certificates.SERVER_DAYS - 31))
    assert check_keys(server) == []
    at(monkeypatch, timedelta(days=certificates.SERVER_DAYS - 29))
    (warning,) = check_keys(server)
    assert re.search(r"server\.crt expires on .*; .*catchment keys .*/keys --host fl\.example\.org", warning)


def test_certificates_that_are_over_or_not_yet_valid_are_refused(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, timedelta(days=certificates.SERVER_DAYS, seconds=9))
    with pytest.raises(UserError, match=r"server\.crt expired on .*--host fl\.example\.org"):
        check_keys(server)
    at(monkeypatch, timedelta(days=certificates.AUTHORITY_DAYS, seconds=9))
    with pytest.raises(UserError, match=r"ca\.crt expired on .*give every device the new ca\.crt"):
        check_keys(server)
    at(monkeypatch, -timedelta(days=2))
    with pytest.raises(UserError, match=r"ca\.crt is not valid before .*; set the clock, or"):
        check_keys(server)


def test_a_renewed_certificate_is_believed_by_the_same_devices(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, federation = (server / "ca.crt").read_bytes(), (server / "federation.key").read_bytes()
    at(monkeypatch, timedelta(days=certificates.SERVER_DAYS + 1))
    (tmp_path / "ca.key").rename(server / "ca.key")
    for name in ("server.crt", "server.key"):
        (server / name).unlink()
    assert [path.name for path in make_keys(server, 0, ["fl.example.org"])] == ["server.key", "server.crt"]
    (server / "ca.key").unlink()
    assert check_keys(server) == []
    assert ((server / "ca.crt").read_bytes(), (server / "federation.key").read_bytes()) == (authority, federation)


def test_files_of_another_federation_are_refused(server: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    make_keys(other, 0, [])
    for names, expected in (
        (["server.key"], r"server\.key is not the key of .*server\.crt"),
        (["server.crt", "server.key"], r"server\.crt is not signed by .*ca\.crt"),
        (["federation.pub"], r"federation\.key and federation\.pub are not a pair"),
    ):
        kept = {name: (server / name).read_bytes() for name in names}
        for name in names:
            (server / name).write_bytes((other / name).read_bytes())
        with pytest.raises(UserError, match=expected):
            check_keys(server)
        for name, content in kept.items():
            (server / name).write_bytes(content)
    (server / "federation.key").unlink()
    with pytest.raises(
        UserError, match=r"has no federation\.key, .*remove federation\.pub .*catchment keys .* --clients 0"
    ):
        check_keys(server)
    (server / "federation.pub").unlink()
    assert [path.name for path in make_keys(server, 0, [])] == ["federation.key", "federation.pub"]
    assert check_keys(server) == []


def test_what_others_may_read_or_own_is_refused(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, mode in (("server.key", 0o640), ("federation.key", 0o604), (".", 0o710)):
        path = server / name
        before = stat.S_IMODE(path.stat().st_mode)
        path.chmod(mode)
        with pytest.raises(UserError, match=rf"others may read .* \(its mode is {mode:04o}\), .*: chmod [67]00"):
            check_keys(server)
        path.chmod(before)
    assert check_keys(server) == []
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    with pytest.raises(UserError, match=rf"keys belongs to user {me}, and this is user {me + 1}; .*chown {me + 1}"):
        check_keys(server)


def test_a_device_looks_at_its_own_key(tmp_path: Path) -> None:
    public = make_device_key(tmp_path / "device.key")
    check_device_key(tmp_path / "device.key")
    (tmp_path / "device.key").chmod(0o644)
    with pytest.raises(UserError, match=r"others may read .*device\.key \(its mode is 0644\), .*: chmod 600"):
        check_device_key(tmp_path / "device.key")
    public.chmod(0o600)
    with pytest.raises(UserError, match=r"device\.pub cannot be read as what its name says"):
        check_device_key(public)
    with pytest.raises(UserError, match=r"nowhere\.key cannot be read: No such file"):
        check_device_key(tmp_path / "nowhere.key")
    small = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    (tmp_path / "other.key").write_bytes(small)
    (tmp_path / "other.key").chmod(0o600)
    with pytest.raises(UserError, match=r"other\.key is a private key of another kind; ECDSA over P-384 is expected"):
        check_device_key(tmp_path / "other.key")


# ---- bad input


@pytest.mark.parametrize(
    "host", ["", "http://a.example.org", "a.example.org:9092", "10.0.0.256", "a b", "-a.org", "münchen.de", "a..b"]
)
def test_what_is_no_host_is_refused_before_anything_is_written(tmp_path: Path, host: str) -> None:
    with pytest.raises(UserError, match=re.escape(f'host "{host}" is neither a name nor an address')):
        make_keys(tmp_path / "keys", 1, [host])
    assert not (tmp_path / "keys").exists()


def test_other_bad_input(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keys for -1 clients were asked for; at least 0 is expected"):
        make_keys(tmp_path / "keys", -1, [])
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file cannot be made: File exists"):
        make_keys(tmp_path / "file", 1, [])
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(UserError, match=r"others may read .*open \(its mode is 0755\), .*: chmod 700 .*open"):
        make_keys(tmp_path / "open", 1, [])
    assert contents(tmp_path / "open") == {}


def test_the_command_says_what_goes_to_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def catchment(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["catchment", "keys", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return int(stop.value.code or 0), out + err

    code, text = catchment("mine", "--clients", "2", "--host", "fl.example.org", "--host", "::2")
    assert code == 0
    assert "mine: 10 new files" in text
    assert re.search(r"device K, and nobody else.*client-K\.key", text)
    assert re.search(r"the server.*ca\.crt, server\.crt, server\.key", text)
    names = certificate(tmp_path / "mine/server.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert x509.DNSName("fl.example.org") in names.value
    assert x509.IPAddress(ip_address("::2")) in names.value
    code, text = catchment("mine", "--clients", "2", "--host", "b.example.org")
    assert code == 2
    assert text.startswith("error: mine/server.crt is for ")


def test_a_person_is_warned_on_the_terminal_before_a_server_starts(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.toml").write_text('name = "tiny"\n')
    monkeypatch.chdir(tmp_path)
    started: list[str | None] = []
    monkeypatch.setattr(launch, "run", lambda experiment, *_, **__: started.append(experiment.flower.keys))
    monkeypatch.setattr(runs, "show_runs", lambda directories: None)

    def warned(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["catchment", "server", "tiny.toml", *options])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().err

    assert warned("--keys", "keys") == ""
    (tmp_path / "ca.key").rename(server / "ca.key")
    assert warned("--keys", "keys").startswith(f"warning: {server}/ca.key can sign another server for your devices")
    assert warned("--insecure").startswith("warning: there are no keys: whoever reaches this machine may join")
    assert started == [str(server), str(server), None]
    (server / "server.key").chmod(0o644)
    assert warned("--keys", "keys").startswith(f"error: others may read {server}/server.key (its mode is 0644)")
    assert len(started) == 3
