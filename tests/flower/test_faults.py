"""What goes wrong with real machines: processes are killed, and nothing of the result changes."""

from __future__ import annotations

import psutil
import pytest

pytest.importorskip("flwr")

from federations import ROUTINE, Machines, child, left_running, outcome, until

from catchment.report import write_report
from catchment.runs.reading import RunFiles

slow = pytest.mark.slow


def counting(rounds=4, method=None, **flower):
    return {
        "rounds": rounds,
        "method": {"name": "counting:Counting", **(method or {})},
        "models": {"client": "mlp"},
        "flower": flower,
    }


def held(folder, number):
    """A method whose clients hold their turn in a round until they are released."""
    return {"held": number, "folder": str(folder)}


def started(machines, clients):
    machines.serve()
    for client in range(clients):
        machines.join(client)


def wait_for_turns(folder, *clients):
    until(lambda: all((folder / f"begun-{client}").exists() for client in clients), f"the turns of clients {clients}")


def release(folder):
    (folder / "released").touch()


def counts(machines):
    """What every client had counted at the end of each round."""
    return [{int(name[-1]): int(n) for name, n in record["more"].items()} for record in machines.rounds()]


def check_report(machines):
    """The report tells of every event."""
    run = RunFiles.read(machines.out)
    page = write_report([run], machines.out / "report.html").read_text()
    for record in run.rounds:
        for event in record.events:
            assert event.why.split("(")[0].strip()[:40] in page


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
    with Machines(tmp_path, counting(method=held(tmp_path, 2)), 2) as machines:
        started(machines, 2)
        wait_for_turns(tmp_path, 1)
        machines.kill("client-1")
        machines.join(1)
        release(tmp_path)
        result = machines.result()
        assert result["lost"] == result["failed"] == 0
        assert counts(machines) == [{0: n, 1: n} for n in (1, 2, 3, 4)]
        check_report(machines)


@slow
def test_a_client_that_stays_away_is_lost_and_the_others_go_on(tmp_path):
    with Machines(tmp_path, counting(method=held(tmp_path, 2), wait=120.0), 3) as machines:
        started(machines, 3)
        wait_for_turns(tmp_path, 1)
        machines.kill("client-1")
        release(tmp_path)
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
    with Machines(tmp_path, counting(rounds=3, method={"hangs": 1}, answer=8.0), 2) as machines:
        started(machines, 2)
        machines.result()
        assert counts(machines) == [{0: 1}, {0: 2}, {0: 3}]
        assert [(number, event["client"]) for number, event in machines.events("lost")] == [(1, 1)]
        assert machines.processes["client-1"].poll() is None


@slow
def test_a_client_that_joins_late_takes_part_from_then_on(tmp_path):
    with Machines(tmp_path, counting(rounds=8, method=held(tmp_path, 4), wait=60.0, least=2), 3) as machines:
        machines.serve()
        machines.join(0)
        machines.join(2)
        wait_for_turns(tmp_path, 0, 2)
        machines.join(1)
        until(lambda: "hello answered" in machines.log("client-1"), "client 1 to join")
        release(tmp_path)
        machines.result()
        joined = {event["client"]: number for number, event in machines.events("joined")}
        assert joined[0] == joined[2] == 1 < joined[1]
        last = counts(machines)[-1]
        assert last[0] == last[2] == 8
        assert last[1] in (8 - joined[1], 9 - joined[1])  # it joined before that round was asked, or while it was on
        check_report(machines)


@slow
def test_a_server_routine_that_is_killed_goes_on_from_its_checkpoint(tmp_path):
    with Machines(tmp_path, counting(method=held(tmp_path, 3)), 2) as machines:
        started(machines, 2)
        wait_for_turns(tmp_path, 0, 1)
        machines.kill_routine()
        release(tmp_path)
        machines.result()
        assert counts(machines) == [{0: n, 1: n} for n in (1, 2, 3, 4)]  # what a disowned life counted is forgotten
        assert machines.events("resumed")
        assert "server routine" in machines.events("restarted")[0][1]["why"]
        check_report(machines)


@slow
def test_all_of_the_server_may_die_and_be_resumed(tmp_path):
    with Machines(tmp_path, counting(method=held(tmp_path, 3)), 2) as machines:
        started(machines, 2)
        wait_for_turns(tmp_path, 0, 1)
        children = psutil.Process(machines.processes["server"].pid).children(recursive=True)
        machines.kill("server")
        until(lambda: not psutil.wait_procs(children, 0.1)[1], "the server's processes to end with it", 30)
        assert not left_running(machines.out)
        machines.catchment("server", "resume", machines.out)
        release(tmp_path)
        machines.result()
        assert counts(machines) == [{0: n, 1: n} for n in (1, 2, 3, 4)]
        assert machines.events("resumed")


@slow
def test_a_second_resume_is_refused_and_kills_nothing(tmp_path):
    with Machines(tmp_path, counting(rounds=2), 1) as machines:
        machines.serve()
        machines.wait_for_run()
        first = child(ROUTINE, machines.processes["server"].pid)
        second = machines.catchment("second", "resume", machines.out)
        assert second.wait(120) == 2
        assert "is in use: another process is running it" in machines.log("second")
        assert "Traceback" not in machines.log("second")
        machines.join(0)
        machines.result()
        assert machines.events("restarted", "resumed") == []
        assert not first.is_running()
