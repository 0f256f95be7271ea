"""The server routine of a run: in a process of its own with the link for devices, or over the grid of a Flower app.

    python -m catchment.flower.serving DIRECTORY DESCRIPTOR

does the remaining rounds of a run, with the clients that connect to the listening socket of that descriptor.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path

from catchment import process
from catchment.config.experiment import Experiment
from catchment.core.expectations import Expectations
from catchment.core.transport import Transport
from catchment.core.world import World
from catchment.device.consent import announced
from catchment.device.policy import digest
from catchment.errors import CatchmentError
from catchment.files import write_atomically
from catchment.flower.control import ControlFiles
from catchment.flower.link import Link
from catchment.flower.listening import raise_open_files
from catchment.flower.messages import Grid
from catchment.flower.store import Store
from catchment.flower.transport import Flower
from catchment.keys.admission import admitted_keys
from catchment.keys.keys import sign_run
from catchment.process import this_rank
from catchment.runs.directory import begin, load_experiment
from catchment.runs.loop import run_rounds
from catchment.runs.presence import Presence, what_helps
from catchment.simulation.ranks import Ranks
from catchment.version import __version__

KEYS = 2.0  # seconds between two checks for keys that are new or gone


def start_run(file: Path, directory: Path) -> None:
    """Make the directory of a run from an experiment file."""
    begin(Experiment.load(file, {"engine": "flower", "flower.local": False}), directory)


def serve_run(
    grid: Grid,
    experiment: Experiment,
    directory: Path,
    *,
    keys: Path | None = None,
    expect: Callable[[str, int], None] = lambda message, size: None,
    client_of: Callable[[int], int | None] | None = None,
    admits: Callable[[int], bool] = lambda client: True,
    sleep: Callable[[float], None] = time.sleep,
    ranks: Ranks | None = None,
) -> None:
    """Do the remaining rounds of the run in a directory with the clients of a grid; `keys` holds what signs it.

    If there are other `ranks`, they share the training of the server's model.
    """
    process.set_up()
    control = ControlFiles(directory)

    def transport(world: World) -> Transport:
        def waiting(seconds: float) -> None:
            presence.note(made.states(), made.waits)
            sleep(seconds)

        def helps(states: Mapping[int, str]) -> list[str]:
            return what_helps(states, shown, str(keys))

        text = announced(experiment)
        form = json.dumps(world.data.dataset.form.to_dict())
        fingerprint = digest(text, form)
        write_atomically(control.digest, fingerprint.encode())
        signature = "" if keys is None else sign_run(keys / "federation.key", control.federation, fingerprint)
        shown = "" if experiment.flower.local else fingerprint
        presence = Presence(directory, shown, keys)
        made = Flower(
            grid,
            experiment=text,
            form=form,
            federation=control.federation,
            signature=signature,
            version=__version__,
            clients=world.clients,
            wait=experiment.flower.wait,
            least=experiment.flower.least,
            answer=experiment.flower.answer,
            deadline=experiment.participation.deadline,
            largest=Expectations.of(world.method, world).largest,
            expect=expect,
            client_of=client_of,
            admits=admits,
            helps=helps,
            notices=control.new_notices,
            sleep=waiting,
        )
        return made

    try:
        settings = (experiment.to_toml(), 0, experiment.threads, experiment.data_parallel)
        with nullcontext() if ranks is None else ranks.serving(*settings):
            world = experiment.build_world()
            run_rounds(experiment, world, transport(world), directory)
    except CatchmentError as error:
        control.stop(error)
        raise


def main(directory: Path, descriptor: int) -> None:
    """The process of the server routine; under `torchrun` it is rank 0 of the job."""
    raise_open_files()
    control = ControlFiles(directory)
    experiment = load_experiment(directory)
    keys, clients = control.keys(experiment), experiment.data.clients
    given = experiment.flower.keys
    certificate = None if given is None else (Path(given) / "server.crt", Path(given) / "server.key")
    link = Link(socket.socket(fileno=descriptor), clients, certificate)
    if keys is not None:
        known = admitted_keys(keys, clients)
        link.store.admit(known)
        follow = (link.store, keys, clients, known, control)
        threading.Thread(target=_follow, args=follow, name="keys", daemon=True).start()
    with ExitStack() as stack:
        ranks = None if this_rank() is None else stack.enter_context(closing(Ranks()))
        stack.enter_context(link)
        client_of = None if keys is None else link.store.client
        store = link.store
        serve_run(
            link, experiment, directory, keys=keys, expect=store.expect, client_of=client_of, admits=store.admits,
            sleep=link.wait, ranks=ranks,
        )  # fmt: skip


def _follow(store: Store, folder: Path, clients: int, known: Mapping[bytes, int], control: ControlFiles) -> None:
    """Follow the folder of keys: disconnect clients whose key is gone from it, admit new ones.

    Whatever goes wrong, the keys that are known hold, and the folder is looked at again.
    """
    told = ""
    while True:
        time.sleep(KEYS)
        try:
            known = admitted_keys(folder, clients, known)
            for client in store.admit(known):
                control.note("revoked", client, "its key was revoked or replaced")
        except Exception as error:
            if told != (told := f"{type(error).__name__}: {error}"):
                print(f"the keys in {folder} cannot be followed ({told}); those that are known hold", flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except CatchmentError as error:
        sys.exit(f"error: {error}")
