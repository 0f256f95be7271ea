"""What goes wrong with real machines: processes are killed, and nothing of the result changes."""

from __future__ import annotations

import time

import psutil
import pytest

pytest.importorskip("flwr")

from federations import ROUTINE, Machines, child, left_running, outcome, until

from catchment.report import RunFiles, write_report

slow = pytest.mark.slow


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


@pytest.mark.parametrize(
    ("method", "killed"),
    [
        ("fedgkt", {1: ["client-1.toml"], 2: [ROUTINE]}),
        pytest.param("fedavg", {1: [ROUTINE], 2: [ROUTINE, "client-0.toml"]}, marks=slow),
        pytest.param("fedgkt", {1: ["client-0.toml", "client-1.toml"], 2: ["client-0.toml", ROUTINE]}, marks=slow),
    ],
)
def test_processes_that_are_killed_change_nothing_of_the_result(method, killed, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # for the server routine, as here
    left = dict(killed)

    def observe(record):
        for word in left.pop(record["round"], ()):
            child(word).kill()

    settings = {"rounds": 4, "data": {"clients": 2}}
    here = outcome(method, tmp_path / "here", **settings)
    there = outcome(method, tmp_path / "there", engine="flower", observe=observe, **settings)
    assert not left
    assert there == here
    assert not left_running(tmp_path)


@slow
def test_a_client_that_is_killed_in_its_turn_and_comes_back_has_lost_nothing(tmp_path):
    with Machines(tmp_path, counting(), 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(1)
        time.sleep(0.7)  # it is in its second turn
        machines.kill("client-1")
        machines.join(1)
        result = machines.result()
        assert result["lost"] == result["failed"] == 0
        assert counts(machines) == [{0: n, 1: n} for n in (1, 2, 3, 4)]
        check_report(machines)


@slow
def test_a_client_that_stays_away_is_lost_and_the_others_go_on(tmp_path):
    with Machines(tmp_path, counting(seconds=3.0, wait=120.0), 3) as machines:
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
        assert [(n, event["client"]) for n, event in machines.events("left")] == [(2, 1)]
        check_report(machines)


@slow
def test_a_device_that_hangs_and_still_sends_signs_of_life_does_not_stall_the_run(tmp_path):
    table = counting(rounds=3, seconds=1.0, answer=8.0)
    table["method"]["hangs"] = 1
    with Machines(tmp_path, table, 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.result()
        assert counts(machines) == [{0: 1}, {0: 2}, {0: 3}]
        assert [(number, event["client"]) for number, event in machines.events("lost")] == [(1, 1)]
        assert machines.processes["client-1"].poll() is None


@slow
def test_a_client_that_joins_late_takes_part_from_then_on(tmp_path):
    with Machines(tmp_path, counting(rounds=8, wait=120.0, least=2), 3) as machines:
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


@slow
def test_a_server_routine_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
    with Machines(tmp_path, counting(), 2) as machines:
        machines.serve()
        for client in range(2):
            machines.join(client)
        machines.wait_for_round(2)
        time.sleep(0.7)
        machines.kill_routine()
        machines.result()
        assert counts(machines) == [{0: n, 1: n} for n in (1, 2, 3, 4)]  # what a disowned life counted is forgotten
        assert machines.events("resumed")
        assert "server routine" in machines.events("restarted")[0][1]["why"]
        check_report(machines)


@slow
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
        assert counts(machines) == [{0: n, 1: n} for n in (1, 2, 3, 4)]
        assert machines.events("resumed")


def test_a_second_resume_is_refused_and_kills_nothing(tmp_path):
    with Machines(tmp_path, counting(rounds=2, seconds=0.5), 1) as machines:
        machines.serve()
        until((machines.out / "flower" / "digest").exists, "the server to know its run")
        first = child(ROUTINE, machines.processes["server"].pid)
        second = machines.catchment("second", "resume", machines.out)
        assert second.wait(120) == 2
        assert "is in use: another process is running it" in machines.log("second")
        assert "Traceback" not in machines.log("second")
        machines.join(0)
        machines.result()
        assert machines.events("restarted", "resumed") == []
        assert not first.is_running()
