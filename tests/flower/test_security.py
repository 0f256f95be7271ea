"""Who may join and who may not: real processes, with the commands that the docs give and with Flower's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from federations import HERE, ROUTINE, Machines, child, until

import catchment
from catchment.flower.federation import environment
from catchment.flower.supernode import FleetClient, NotAdmitted
from catchment.keys.admission import admit, revoke
from catchment.keys.keys import make_device_key, make_keys

slow = pytest.mark.slow
APP = Path(catchment.__file__).parents[1] / "examples" / "flower_app"


def counting(rounds=3, seconds=1.0, **flower):
    method = {"name": "counting:Counting", "seconds": seconds}
    return {"rounds": rounds, "method": method, "models": {"client": "mlp"}, "flower": flower}


def flwr(home, address, trust, *arguments):
    """One of Flower's own commands against a server."""
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'[superlink]\ndefault = "v"\n[superlink.v]\naddress = "{address}"\n{trust}\n')
    program = Path(sys.executable).parent / "flwr"
    settings = environment(home) | {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run([program, *arguments, "v"], env=settings, capture_output=True, text=True)


@pytest.mark.parametrize("keys", [True, pytest.param(False, marks=slow)], ids=["TLS and keys", "insecure"])
def test_flowers_own_commands_start_and_stop_nothing(keys, tmp_path):
    folder = tmp_path / "keys" if keys else None
    if folder is not None:
        make_keys(folder, 1, [])
    with Machines(tmp_path, counting(rounds=2, wait=200.0), 1, folder) as machines:
        machines.serve()
        machines.wait_for_run()
        trust = "insecure = true" if folder is None else f'root-certificates = "{folder / "ca.crt"}"'
        evil = flwr(tmp_path / "home", f"127.0.0.1:{machines.port}", trust, "run", str(APP))
        assert evil.returncode != 0
        listing = flwr(tmp_path / "home", f"127.0.0.1:{machines.port}", trust, "list")
        assert listing.returncode != 0
        machines.join(0)
        machines.result()
        assert not (machines.folder / "runs").exists()
        assert "warning" in machines.log("server") if folder is None else True


def test_nobody_else_on_the_machine_joins_a_run_of_local_clients(tmp_path):
    refused = []

    def observe(record):
        if record["round"] > 1:
            return
        connections = child(ROUTINE).net_connections("tcp")
        (port,) = {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
        stranger = FleetClient(f"127.0.0.1:{port}", None, ec.generate_private_key(ec.SECP384R1()))
        with stranger, pytest.raises(NotAdmitted) as why, stranger.connected():
            pass
        refused.append(why)

    table = {"path": str(HERE), "engine": "flower", **counting(rounds=3, seconds=1.0)}
    table["data"] = {"name": "digits", "train": 60, "test": 20, "clients": 1}
    catchment.run(catchment.Experiment.from_dict(table), tmp_path / "run", observe=observe)
    assert refused
    assert (tmp_path / "run" / "flower" / "keys").stat().st_mode & 0o077 == 0


@slow
def test_only_devices_with_their_own_key_join_and_only_the_right_server(tmp_path):
    keys, others = tmp_path / "keys", tmp_path / "others"
    make_keys(keys, 2, [])
    make_keys(others, 3, [])
    with Machines(tmp_path, counting(wait=280.0, least=2), 2, keys) as machines:
        machines.serve()
        stranger = machines.join(0, "wrong-certificate", root_certificate=others / "ca.crt")
        assert stranger.wait(120) == 1
        assert "error: client 0 cannot join" in machines.log("wrong-certificate")
        assert "certificate" in machines.log("wrong-certificate")
        assert "Traceback" not in machines.log("wrong-certificate")
        unknown = machines.join(0, "unknown-key", key=others / "client-0.key")
        until(lambda: "the key of this device is not admitted" in machines.log("unknown-key"), "it to be refused")
        assert unknown.poll() is None  # it may be admitted yet
        unknown.terminate()
        impostor = machines.join(0, "impostor", key=keys / "client-1.key")
        # Only a device that was refused is greeted again.
        until(lambda: machines.log("impostor").count("hello answered") > 1, "the impostor to be refused")
        impostor.terminate()
        impostor.wait(60)
        machines.join(0)
        machines.join(1)
        result = machines.result()
        assert result["lost"] == result["failed"] == 0
        assert machines.rounds()[-1]["more"] == {"client 0": 3.0, "client 1": 3.0}
        (refused,) = {event["why"].partition(": ")[2] for _, event in machines.events("declined")}
        assert "its key is that of client 1" in refused


@slow
def test_a_key_that_is_revoked_or_replaced_counts_no_more_in_a_running_federation(tmp_path):
    keys = tmp_path / "keys"
    make_keys(keys, 3, [])
    with Machines(tmp_path, counting(rounds=12, seconds=1.0, wait=120.0, least=1), 3, keys) as machines:
        machines.serve()
        for client in range(3):
            machines.join(client)
        machines.wait_for_round(2)
        revoke(keys, 1)
        until(lambda: "not admitted" in machines.log("client-1"), "client 1 to be refused")
        public = make_device_key(tmp_path / "fresh.key")
        admit(keys, public, 2, replace=True)
        until(lambda: "not admitted" in machines.log("client-2"), "client 2 to be refused")
        assert machines.processes["client-2"].poll() is None
        machines.kill("client-2")
        machines.join(2, key=tmp_path / "fresh.key")
        machines.result()
        assert sorted(event["client"] for _, event in machines.events("revoked")) == [1, 2]
        last = machines.rounds()[-1]["more"]
        assert last["client 0"] == 12.0
        assert last["client 2"] == 12.0
        assert last["client 1"] < 12.0
