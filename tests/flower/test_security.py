"""Who may join: TLS and keys, with real processes, from the commands that the docs give."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("flwr")

from federations import Machines, until

from catchment.flower.keys import make_keys

pytestmark = pytest.mark.slow

TABLE = {
    "rounds": 3,
    "method": {"name": "counting:Counting", "seconds": 1.0},
    "models": {"client": "mlp"},
    "flower": {"wait": 280.0, "least": 2},
}


def test_only_devices_with_their_own_key_join_and_only_the_right_server(tmp_path):
    keys, others = tmp_path / "keys", tmp_path / "others"
    make_keys(keys, 2, [])
    make_keys(others, 3, [])

    def secrets(folder, client):
        return "--root-certificate", str(folder / "ca.crt"), "--key", str(folder / f"client-{client}.key")

    with Machines(tmp_path, TABLE, 2, "--keys", str(keys)) as machines:
        machines.serve()
        until(lambda: (machines.out / "flower" / "nodes.json").exists(), "the server")
        address = f"127.0.0.1:{machines.port}"
        join = ("join", address, "--client-id", 0, "--state", "stranger")
        strangers = {
            "no key": ("--root-certificate", keys / "ca.crt"),
            "unknown key": ("--root-certificate", keys / "ca.crt", "--key", others / "client-0.key"),
            "wrong certificate": ("--root-certificate", others / "ca.crt", "--key", keys / "client-0.key"),
            "no encryption": ("--insecure",),
        }
        for name, options in strangers.items():
            stranger = machines.catchment(name, *join, *options)
            if name == "no encryption":  # never gets an answer, and tries on
                continue
            assert stranger.wait(120) == 1, name
            assert "error: client 0 cannot join" in machines.log(name)
            assert "Traceback" not in machines.log(name)
        impostor = machines.catchment("impostor", "join", address, "--client-id", 0, "--state", "s", *secrets(keys, 1))
        until(lambda: "hello answered" in machines.log("impostor"), "the impostor to answer")
        time.sleep(5)  # until the server has heard it
        impostor.terminate()
        impostor.wait(60)
        machines.kill("no encryption")
        machines.join(0, *secrets(keys, 0))
        machines.join(1, *secrets(keys, 1))
        result = machines.result()
        assert result["lost"] == result["failed"] == 0
        assert machines.rounds()[-1]["more"] == {"client 0": 3.0, "client 1": 3.0}
        (refused,) = {event["why"].partition(": ")[2] for _, event in machines.events("refused")}
        assert "its key is that of client 1" in refused
