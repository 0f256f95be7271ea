"""What a server says of the devices that it waits for, with a clock by hand."""

import pytest

pytest.importorskip("flwr")

from catchment.flower import telling
from catchment.flower.telling import Telling
from catchment.runs.presence import Presence, what_helps

APPROVE = "catchment policy --approve d1ge57"


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only as the test says."""
    now = [1000.0]
    for module in ("catchment.flower.telling.time", "catchment.runs.presence.time"):
        monkeypatch.setattr(f"{module}.time", lambda: now[0])
        monkeypatch.setattr(f"{module}.monotonic", lambda: now[0])
    return now


def test_what_waits_is_said_at_once_and_again_while_the_run_waits(clock, tmp_path):
    said = []
    presence, follower = Presence(tmp_path, "d1ge57"), Telling(tmp_path, said.append)

    def pass_time(seconds, states, waits=True):
        said.clear()
        clock[0] += seconds
        presence.note(states, waits)
        follower.look()
        return list(said)

    assert pass_time(1, {0: "away", 1: "away", 2: "away"}) == []  # they are still to come
    waiting = {0: "connected", 1: "waits for approval", 2: "away"}
    first = f"client 1 waits for its owner to approve this run; on that device: {APPROVE}"
    assert pass_time(1, waiting) == [first]
    assert pass_time(1, waiting) == []  # once
    missing = "client 2 is not connected; on that device: catchment join"
    assert pass_time(telling.FIRST, waiting) == ["1 of 3 clients take part so far", first, missing]
    assert pass_time(telling.FIRST, waiting) == []  # each pause is twice as long
    assert pass_time(telling.FIRST, waiting)[1:] == [first, missing]
    assert pass_time(9999, {**waiting, 2: "working"}, waits=False) == []  # the run goes on without it
    assert pass_time(1, {**waiting, 2: "waits for approval"}, waits=False) == [first.replace("client 1", "client 2")]


def test_nothing_is_said_of_clients_of_this_machine_or_of_an_earlier_start(clock, tmp_path):
    said = []
    Presence(tmp_path, "d1ge57").note({0: "waits for approval"}, waits=True)
    clock[0] += 60
    follower = Telling(tmp_path, said.append)
    follower.look()
    clock[0] += 60
    Presence(tmp_path).note({0: "waits for approval"}, waits=True)
    follower.look()
    assert said == []


def test_clients_for_whom_the_same_helps_share_a_sentence():
    states = {
        0: "connected", 1: "waits for approval", 2: "has no key", 3: "waits for approval", 4: "has no key",
        5: "has yet to answer", 6: "refuses: the device does not send labels", 7: "working",
    }  # fmt: skip
    assert what_helps(states, "d1ge57", "keys") == [
        f"clients 1, 3 wait for their owners to approve this run; on each of these devices: {APPROVE}",
        "clients 2, 4 have no key; here: catchment keys keys --add FILE --client-id K",
        "client 5 is connected, and has yet to answer: the data are read, or a person is asked",
        "client 6 refuses to take part: the device does not send labels; on that device: catchment policy",
    ]
    assert what_helps({3: "has no key"}, "d1ge57", "k")[0].endswith("catchment keys k --add FILE --client-id 3")
    assert what_helps(states, "", "keys") == []
