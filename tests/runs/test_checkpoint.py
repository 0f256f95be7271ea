"""Files that are never half written, states that come back whole, and client states that are always the newest."""

import errno
import json
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from worlds import experiment

import catchment
from catchment.core.fleet import FleetSnapshot
from catchment.core.inflight import InFlightSnapshot
from catchment.core.outcomes import Outcomes
from catchment.core.transport import Snapshot
from catchment.errors import ProtocolError, RunError
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response
from catchment.files import write_atomically
from catchment.learning.optimizers import OptimizerSettings
from catchment.runs.checkpoint import KEPT, Checkpoints
from catchment.runs.client_files import FEW, MANY
from catchment.runs.state import flatten, unflatten


def no_space(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# ---- files ------------------------------------------------------------------------------------------------------


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["file"]


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError) as caught:
        write_atomically(path, b"new")
    assert str(caught.value) == f"{path} cannot be written: No space left on device; what was there before is kept"
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_a_full_disk_leaves_no_new_file(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match="No space left on device"):
        write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == []


def test_the_content_is_on_the_disk_before_the_name_points_to_it(tmp_path, monkeypatch):
    path, seen = tmp_path / "file", []
    write_atomically(path, b"old")
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(path.read_bytes()))
    write_atomically(path, b"new")
    assert seen == [b"old", b"new"]  # the file, then the folder


def test_a_missing_folder_is_an_error_with_the_path(tmp_path):
    path = tmp_path / "missing" / "file"
    with pytest.raises(RunError) as caught:
        write_atomically(path, b"new")
    assert str(caught.value).startswith(f"{path} cannot be written: No such file or directory")


def test_a_file_in_the_place_of_the_folder_is_an_error_with_the_path(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(RunError, match="cannot be written: Not a directory"):
        write_atomically(tmp_path / "file" / "below", b"new")


def test_an_interrupted_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == []


# ---- states -----------------------------------------------------------------------------------------------------


@dataclass
class Inner:
    history: list[float] = field(default_factory=list)
    pair: tuple[int, str] = (0, "")


@dataclass
class State:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    inner: Inner
    weights: dict[str, Tensor] = field(default_factory=dict)
    feedback: dict[int, dict[str, Tensor] | None] = field(default_factory=dict)
    best: float | None = None
    done: bool = False


def fresh_state(settings=OptimizerSettings("adam", lr=0.1, amsgrad=True)) -> State:  # noqa: B008
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return State(model, settings.build(model.parameters()), Inner())


def train(state: State, steps: int) -> None:
    for step in range(steps):
        state.optimizer.zero_grad()
        state.model(torch.tensor([[1.0, step], [2.0, 3.0]])).square().sum().backward()
        state.optimizer.step()


def kept(state: Any, fresh: Any) -> Any:
    """A state through the bytes of a file."""
    tensors: dict[str, Tensor] = {}
    form = json.dumps(flatten(state, "state", tensors))
    message, _ = Message.from_bytes(Message(tensors).to_bytes())
    return unflatten(json.loads(form), message.tensors, fresh)


@dataclass
class Box:
    value: Any


def kept_value(value: Any, fresh: Any = None) -> Any:
    return kept(Box(value), Box(fresh)).value


def test_a_nested_state_comes_back_whole():
    state = fresh_state()
    train(state, 3)
    state.inner = Inner([1.5, float("inf")], (7, "seven"))
    state.weights = {"b": torch.arange(3.0), "a": torch.tensor(True)}
    state.feedback = {10: {"logits": torch.ones(2, 2)}, 2: None}
    state.best, state.done = 0.25, True

    fresh = fresh_state()
    again = kept(state, fresh)

    assert again is fresh
    assert again.inner == Inner([1.5, float("inf")], (7, "seven"))
    assert isinstance(again.inner.pair, tuple)
    assert list(again.weights) == ["b", "a"]
    assert torch.equal(again.weights["b"], torch.arange(3.0))
    assert again.weights["a"].dtype == torch.bool
    assert list(again.feedback) == [10, 2]
    assert torch.equal(again.feedback[10]["logits"], torch.ones(2, 2))
    assert again.feedback[2] is None
    assert (again.best, again.done) == (0.25, True)
    for name, tensor in state.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "settings",
    [OptimizerSettings("adam", lr=0.1, amsgrad=True), OptimizerSettings("sgd", lr=0.01, momentum=0.9)],
    ids=["adam", "sgd"],
)
def test_training_goes_on_from_a_kept_state_as_if_uninterrupted(settings):
    whole = fresh_state(settings)
    first = fresh_state(settings)
    first.model.load_state_dict(whole.model.state_dict())
    train(whole, 3)
    train(whole, 3)
    train(first, 3)
    second = kept(first, fresh_state(settings))
    train(second, 3)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name], tensor), name


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        -(2**70),
        0.1,
        float("inf"),
        "",
        "é\n",
        [],
        (),
        {},
        [1, [2, (3,)]],
        {"a": 1, 1: 2, "1": 3},
        {"": None},
    ],
    ids=repr,
)
def test_plain_values_come_back_equal_and_of_the_same_type(value):
    again = kept_value(value)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        {7: torch.arange(6.0).view(3, 2), 2: torch.ones(1, 2), 4: torch.empty(0, 2)},
        {7: torch.arange(3), 2: torch.arange(2.0)},
        {7: torch.ones(1, 2), 2: torch.ones(1, 3)},
        {7: torch.tensor(1.0), 2: torch.tensor(2.0)},
        {7: torch.ones(2)},
        {"7": torch.ones(2), "2": torch.ones(2)},
        {7: torch.ones(2), 2: None},
    ],
    ids=["alike", "other dtypes", "other shapes", "no rows", "one", "words", "nothing"],
)
def test_tensors_by_number_come_back(value):
    again = kept_value(value)
    assert list(again) == list(value)
    for key, tensor in value.items():
        assert again[key] is None if tensor is None else torch.equal(again[key], tensor)
        assert tensor is None or again[key].dtype == tensor.dtype


def test_rows_of_many_clients_are_one_tensor_of_a_file():
    tensors: dict[str, Tensor] = {}
    flatten({client: torch.full((client % 3, 10), client) for client in range(1000)}, "logits", tensors)
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {"logits": [999, 10]}


def test_keys_that_are_numbers_stay_numbers():
    assert [type(key) for key in kept_value({1: "a", "1": "b"})] == [int, str]


def test_a_learning_rate_changed_on_the_way_comes_back():
    state = fresh_state()
    state.optimizer.param_groups[0]["lr"] = 0.007
    assert kept(state, fresh_state()).optimizer.param_groups[0]["lr"] == 0.007


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, "state/value is a set, which cannot be checkpointed; use tensors, plain values, lists, dicts"),
        (b"bytes", "state/value is a bytes, which cannot be checkpointed"),
        (object(), "state/value is a object, which cannot be checkpointed"),
        (torch.Generator(), "state/value is a Generator, which cannot be checkpointed"),
        ([0, {"a": {1}}], "state/value/1/0 is a set, which cannot be checkpointed"),
        ({(1, 2): 3}, "state/value has the key (1, 2); a checkpoint takes keys that are text or whole numbers"),
        ({None: 3}, "state/value has the key None; a checkpoint takes keys that are text or whole numbers"),
        ({0.5: 3}, "state/value has the key 0.5; a checkpoint takes keys that are text or whole numbers"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(value, said):
    with pytest.raises(ProtocolError) as caught:
        flatten(Box(value), "state", {})
    assert str(caught.value).startswith(said)


class Point(NamedTuple):
    x: int


@dataclass(frozen=True)
class Frozen:
    x: int


@pytest.mark.parametrize("value", [Point(1), Frozen(1)], ids=["named tuple", "frozen dataclass"])
def test_a_class_of_values_is_refused_or_comes_back_as_itself(value):
    try:
        flatten(Box(value), "state", {})
    except ProtocolError:
        return
    again = kept_value(value, type(value)(0))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize("value", [{0: Box(1)}, [Box(1)], nn.Linear(1, 1)], ids=["in a dict", "in a list", "module"])
def test_what_a_fresh_state_does_not_have_is_a_clear_error(value):
    with pytest.raises(ProtocolError, match="a new state of the method"):
        kept_value(value)


# ---- checkpoints ------------------------------------------------------------------------------------------------


def snapshot(states=None, *, sequence=0, pending=(), arrived=(), now=0.0, sent=None) -> FleetSnapshot:
    transport = Snapshot(now, sent or {}, states or {})
    inflight = InFlightSnapshot(sequence, 4, list(pending), list(arrived), transport)
    return FleetSnapshot(inflight, Outcomes(suspended={5}).snapshot(), {7: 40}, {})


def client_state(value: float) -> dict[str, dict[str, Tensor]]:
    return {"model": {"layer/weight": torch.tensor([value])}}


def values(states) -> dict[int, float]:
    return {client: state["model"]["layer/weight"].item() for client, state in states.items()}


def stored(path) -> set[int]:
    """The clients in a client file."""
    return {int(name.split("/")[0]) for name in Message.from_bytes(path.read_bytes())[0].tensors}


def client_files(directory) -> list[str]:
    return [name for name in names(directory) if name.startswith("clients-")]


def round_files(directory) -> list[str]:
    return [name for name in names(directory) if name.startswith("round-")]


def truncate(path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def test_no_checkpoint_is_none(tmp_path):
    assert Checkpoints(tmp_path / "not there yet").latest() is None


def test_a_checkpoint_comes_back_with_everything(tmp_path):
    request = Request(3, "train", 2, 0, 7, Message({"x": torch.ones(2)}))
    response = Response(3, 7, Message({}, {"loss": 0.5}))
    fleet = snapshot(
        {3: client_state(1.5)},
        sequence=8,
        pending=[(request.to_bytes(), True)],
        arrived=[(request.to_bytes(), response.to_bytes(), False)],
        now=12.5,
        sent={7: 11.25},
    )
    state = Box({"weights": torch.arange(4.0)})
    Checkpoints(tmp_path / "deep" / "down").save(5, state, fleet, {"seconds": 1.5, "bytes": [["up", 3]]})

    loaded = Checkpoints(tmp_path / "deep" / "down").latest()
    assert loaded.round == 5
    assert loaded.progress == {"seconds": 1.5, "bytes": [["up", 3]]}
    assert torch.equal(unflatten(loaded.state, loaded.tensors, Box(None)).value["weights"], torch.arange(4.0))
    assert (loaded.fleet.outcomes, loaded.fleet.samples) == (fleet.outcomes, {7: 40})
    inflight = loaded.fleet.inflight
    assert (inflight.sequence, inflight.resumes) == (8, 4)
    assert (inflight.pending, inflight.arrived) == (fleet.inflight.pending, fleet.inflight.arrived)
    assert (inflight.transport.now, inflight.transport.sent) == (12.5, {7: 11.25})
    assert values(loaded.fleet.inflight.transport.states) == {3: 1.5}


def test_only_the_last_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in range(1, 6):
        checkpoints.save(round, Box(round), snapshot(), {})
    assert round_files(tmp_path) == ["round-000004.safetensors", "round-000005.safetensors"]
    assert KEPT == 2


@pytest.mark.parametrize("damage", ["round", "clients", "clients missing", "empty", "not a message"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(tmp_path, damage):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Box("first"), snapshot({0: client_state(1), 1: client_state(1)}), {})
    checkpoints.save(2, Box("second"), snapshot({0: client_state(2)}), {})
    newest, newest_clients = tmp_path / "round-000002.safetensors", tmp_path / "clients-000002.safetensors"
    if damage == "round":
        truncate(newest)
    elif damage == "clients":
        truncate(newest_clients)
    elif damage == "clients missing":
        newest_clients.unlink()
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        newest.write_bytes(b"nonsense" * 100)

    resumed = Checkpoints(tmp_path)
    loaded = resumed.latest()
    assert loaded.round == 1
    assert unflatten(loaded.state, loaded.tensors, Box(None)).value == "first"
    assert values(loaded.fleet.inflight.transport.states) == {0: 1, 1: 1}

    resumed.save(2, Box("again"), snapshot({1: client_state(3)}), {})
    loaded = Checkpoints(tmp_path).latest()
    assert loaded.round == 2
    assert values(loaded.fleet.inflight.transport.states) == {0: 1, 1: 3}


def test_two_damaged_checkpoints_are_an_error_and_not_a_new_beginning(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in (1, 2):
        checkpoints.save(round, Box(round), snapshot(), {})
        truncate(tmp_path / f"round-{round:06d}.safetensors")
    with pytest.raises(RunError, match=r"no checkpoint in .* can be read \(round-000002.safetensors: .*left as it is"):
        Checkpoints(tmp_path).latest()


@pytest.mark.parametrize("spoil", ["version", "permission", "damage"])
def test_a_run_whose_checkpoints_cannot_be_read_is_left_as_it_is(tmp_path, monkeypatch, spoil):
    out = tmp_path / "run"
    catchment.run(experiment("fedavg", rounds=4), out)
    (out / "result.json").unlink()
    if spoil == "damage":
        for path in (out / "checkpoints").glob("round-*"):
            truncate(path)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    if spoil == "version":
        monkeypatch.setattr("catchment.exchange.message.WIRE_VERSION", "2")
    if spoil == "permission":
        monkeypatch.setattr(Path, "read_bytes", forbidden)
    with pytest.raises(RunError, match=r"can be read .* the run is left as it is"):
        catchment.resume(out)
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def forbidden(path):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("meta", ["{", "[]", '{"clients":[["x","f"]]}'])
def test_a_message_that_is_no_checkpoint_falls_back_to_the_one_before(tmp_path, meta):
    Checkpoints(tmp_path).save(1, Box(1), snapshot(), {})
    (tmp_path / "round-000002.safetensors").write_bytes(Message({}, {"meta": meta}).to_bytes())
    assert Checkpoints(tmp_path).latest().round == 1


def test_a_checkpoint_that_could_not_be_read_leaves_no_trace(tmp_path):
    Checkpoints(tmp_path).save(1, Box(1), snapshot({0: client_state(1), 1: client_state(1)}), {})
    truncate(tmp_path / "clients-000001.safetensors")
    started_over = Checkpoints(tmp_path)
    with pytest.raises(RunError, match="no checkpoint"):
        started_over.latest()
    started_over.save(2, Box(2), snapshot({0: client_state(2)}), {})
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == {0: 2}


def test_a_full_disk_while_saving_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Box(1), snapshot({0: client_state(1)}), {})
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(RunError, match="No space left on device"):
        checkpoints.save(2, Box(2), snapshot({0: client_state(2)}), {})
    monkeypatch.undo()
    loaded = Checkpoints(tmp_path).latest()
    assert loaded.round == 1
    assert values(loaded.fleet.inflight.transport.states) == {0: 1}


# ---- client files -----------------------------------------------------------------------------------------------


def test_untouched_clients_are_not_written_again(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Box(1), snapshot({client: client_state(1) for client in range(4)}), {})
    checkpoints.save(2, Box(2), snapshot({2: client_state(2)}), {})
    checkpoints.save(3, Box(3), snapshot(), {})
    assert client_files(tmp_path) == ["clients-000001.safetensors", "clients-000002.safetensors"]
    assert stored(tmp_path / "clients-000001.safetensors") == {0, 1, 2, 3}
    assert stored(tmp_path / "clients-000002.safetensors") == {2}
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == {0: 1, 1: 1, 2: 2, 3: 1}


def test_untouched_clients_are_not_written_again_after_resuming(tmp_path):
    Checkpoints(tmp_path).save(1, Box(1), snapshot({0: client_state(1), 1: client_state(1)}), {})
    resumed = Checkpoints(tmp_path)
    resumed.latest()
    resumed.save(2, Box(2), snapshot({1: client_state(2)}), {})
    assert stored(tmp_path / "clients-000002.safetensors") == {1}
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == {0: 1, 1: 2}


def test_a_file_that_neither_kept_checkpoint_needs_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in range(1, 5):
        checkpoints.save(round, Box(round), snapshot({0: client_state(round)}), {})
    assert client_files(tmp_path) == ["clients-000003.safetensors", "clients-000004.safetensors"]


def test_files_in_which_little_counts_are_written_anew(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Box(1), snapshot({client: client_state(1) for client in range(5)}), {})
    checkpoints.save(2, Box(2), snapshot({0: client_state(2), 1: client_state(2)}), {})
    assert stored(tmp_path / "clients-000002.safetensors") == {0, 1}  # 3 of 5 still count
    checkpoints.save(3, Box(3), snapshot({2: client_state(3)}), {})
    assert stored(tmp_path / "clients-000003.safetensors") == {2, 3, 4}
    checkpoints.save(4, Box(4), snapshot(), {})
    assert client_files(tmp_path) == ["clients-000002.safetensors", "clients-000003.safetensors"]
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == {0: 2, 1: 2, 2: 3, 3: 1, 4: 1}


def test_many_small_files_are_put_together_and_a_checkpoint_stays_small(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in range(1, MANY + 30):
        checkpoints.save(round, Box(round), snapshot({round: client_state(round)}), {})
        assert len(client_files(tmp_path)) <= MANY + 2
        assert len(stored(tmp_path / f"clients-{round:06d}.safetensors")) <= 1 + FEW
    expected = {client: client for client in range(1, MANY + 30)}
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == expected


def test_what_a_checkpoint_writes_does_not_grow_with_the_clients_that_took_part(tmp_path):
    chance, checkpoints, cohort, written = random.Random(0), Checkpoints(tmp_path), 100, []
    expected: dict[int, float] = {}
    for round in range(1, 80):
        changed = dict.fromkeys(chance.sample(range(2000), cohort), client_state(round))
        expected |= dict.fromkeys(changed, float(round))
        checkpoints.save(round, Box(round), snapshot(changed), {})
        written.append(sum(len(stored(path)) for path in tmp_path.glob(f"clients-{round:06d}*")))
    assert cohort <= max(written) <= 2 * cohort
    held = sum(len(stored(path)) for path in tmp_path.glob("clients-*"))
    assert held < 2.5 * len(expected)
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == expected


def test_large_states_are_written_in_several_files(tmp_path, monkeypatch):
    monkeypatch.setattr("catchment.runs.client_files.FULL", 16)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Box(1), snapshot({client: client_state(client) for client in range(5)}), {})
    assert [stored(tmp_path / name) for name in client_files(tmp_path)] == [{2, 3}, {4}, {0, 1}]
    assert values(Checkpoints(tmp_path).latest().fleet.inflight.transport.states) == {
        client: client for client in range(5)
    }


def test_what_a_client_forgot_does_not_come_back_from_an_older_file(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, Box(1), snapshot({0: {"old": {"x": torch.ones(1)}}, 1: client_state(1)}), {})
    checkpoints.save(2, Box(2), snapshot({0: {"new": {"y": torch.ones(1)}}}), {})
    assert client_files(tmp_path) == ["clients-000001.safetensors", "clients-000002.safetensors"]
    assert list(Checkpoints(tmp_path).latest().fleet.inflight.transport.states[0]) == ["new"]


def test_a_client_that_remembers_nothing_yet_comes_back_with_nothing(tmp_path):
    Checkpoints(tmp_path).save(1, Box(1), snapshot({0: {}, 1: client_state(1)}), {})
    assert Checkpoints(tmp_path).latest().fleet.inflight.transport.states[0] == {}


@pytest.mark.parametrize("seed", range(6))
def test_a_clients_state_is_the_newest_after_any_sequence_of_saves(tmp_path, seed):
    """Saves of random clients, with restarts and damaged newest files in between."""
    chance = random.Random(seed)
    checkpoints = Checkpoints(tmp_path)
    history: dict[int, dict[int, float]] = {0: {}}  # round -> what every client should have
    round = 0
    for step in range(40):
        changed = {client: client_state(step) for client in chance.sample(range(6), chance.randrange(4))}
        expected = {**history[round], **dict.fromkeys(changed, float(step))}
        round += 1
        history[round] = expected
        checkpoints.save(round, Box(round), snapshot(changed), {})
        event = chance.random()
        if event < 0.4:
            if event < 0.2 and round > 1:
                kind = "clients" if changed and event < 0.1 else "round"
                truncate(tmp_path / f"{kind}-{round:06d}.safetensors")
                round -= 1
            checkpoints = Checkpoints(tmp_path)
            loaded = checkpoints.latest()
            assert loaded.round == round
            assert values(loaded.fleet.inflight.transport.states) == history[round]
        assert len(round_files(tmp_path)) <= 2
        assert len(client_files(tmp_path)) <= MANY + 2
