"""What goes wrong with real machines: processes are killed, and the run ends with every round accounted for."""

from __future__ import annotations

import os
import signal
import time

import pytest

pytest.importorskip("flwr")

import psutil
from federations import Machines, left_running, until

from catchment.report import RunFiles, write_report

pytestmark = pytest.mark.slow


def counting(rounds=4, seconds=2.0, **flower):
    method = {"name": "counting:Counting", "seconds": seconds}
    return {"rounds": rounds, "method": method, "models": {"client": "mlp"}, "flower": flower}


def counts(machines):
    """What every client had counted at the end of each round."""
    return [{int(name[-1]): int(n) for name, n in record["more"].items()} for record in machines.rounds()]


def check_report(machines):
    """The report tells of every event."""
    page = write_report([machines.out], machines.out / "report.html").read_text()
    for record in RunFiles.read(machines.out).rounds:
        for event in record["events"]:
            assert event["why"].split("(")[0].strip()[:40] in page


def test_a_client_that_is_killed_in_a_round_is_lost_and_the_others_go_on(tmp_path):
    with Machines(tmp_path, counting(seconds=3.0), 3) as machines:
        machines.serve()
        for client in range(3):
            machines.join(client)
        machines.wait_for_round(1)
        time.sleep(1.5)  # it is in its second turn
        machines.kill("client-1")
        result = machines.result()
        assert result["lost"] == 1
        assert [record["round"] for record in machines.rounds()] == [1, 2, 3, 4]
        assert counts(machines)[-1] == {0: 4, 1: 1, 2: 4}
        ((number, lost),) = machines.events("lost")
        assert (number, lost["client"]) == (2, 1)
        assert "Flower's code" in lost["why"]
        assert [(n, event["client"]) for n, event in machines.events("left")] in ([(2, 1)], [(3, 1)])
        check_report(machines)


def test_a_client_that_joins_late_takes_part_from_then_on(tmp_path):
    with Machines(tmp_path, counting(rounds=8, wait=30.0, least=2), 3) as machines:
        machines.serve()
        machines.join(0)
        machines.join(2)
        machines.wait_for_round(1)
        machines.join(1)
        machines.result()
        joined = {event["client"]: number for number, event in machines.events("joined")}
        assert joined[0] == joined[2] == 1 < joined[1]
        last = counts(machines)[-1]
        assert last[0] == last[2] == 8
        assert last[1] in (8 - joined[1], 9 - joined[1])  # it joined before that round was asked, or while it was on
        check_report(machines)


def test_a_client_that_returns_after_a_restart_has_its_state(tmp_path):
    with Machines(tmp_path, counting(rounds=8, seconds=2.0), 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(2)
        time.sleep(0.7)
        machines.kill("client-1")
        machines.join(1)
        result = machines.result()
        last = counts(machines)[-1]
        assert last[0] == 8
        assert result["lost"] == 1
        rounds_away = sum(before[1] == after[1] for before, after in zip(counts(machines), counts(machines)[1:]))
        assert last[1] == 8 - rounds_away >= 4  # it went on from 2, not from 0
        assert "restarted" in machines.events("lost")[0][1]["why"]
        check_report(machines)


def test_a_superlink_that_is_killed_is_started_again_and_nothing_is_lost(tmp_path):
    with Machines(tmp_path, counting(), 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(1)
        time.sleep(0.7)
        machines.process_of_server("flower-superlink").kill()
        result = machines.result()
        assert result["lost"] == result["failed"] == 0
        assert counts(machines)[-1] == {0: 4, 1: 4}
        assert "superlink" in machines.events("restarted")[0][1]["why"]
        check_report(machines)


def test_a_server_routine_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
    with Machines(tmp_path, counting(), 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(2)
        time.sleep(0.7)
        os.kill(int((machines.out / "flower" / "server.pid").read_text()), signal.SIGKILL)
        machines.result()
        assert [record["round"] for record in machines.rounds()] == [1, 2, 3, 4]
        assert counts(machines)[-1] == {0: 4, 1: 4}  # what a disowned life counted is forgotten
        assert machines.events("resumed")
        assert "server routine died" in machines.events("restarted")[0][1]["why"]
        check_report(machines)


def test_all_of_the_server_may_die_and_be_resumed(tmp_path):
    with Machines(tmp_path, counting(), 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(2)
        children = psutil.Process(machines.processes["server"].pid).children(recursive=True)
        machines.kill("server")
        until(lambda: not psutil.wait_procs(children, 0.1)[1], "the server's processes to end with it", 30)
        assert not left_running(machines.out)
        machines.catchment("server", "resume", machines.out)
        machines.result()
        assert counts(machines)[-1] == {0: 4, 1: 4}
        assert machines.events("resumed")
