"""Catchment as a Flower app: the ServerApp runs the rounds, the ClientApp answers as one device.

For people who trust their Flower deployment: whoever reaches a stock SuperLink can start an app of their own. It takes
no more than a `pyproject.toml` that names these two. The server reads from the run's configuration where to keep the
run (`directory`), a client from its node's configuration where its policy is (`policy`, a `device.toml`).
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from catchment.device import RealDevice
from catchment.device.policy import Policy
from catchment.errors import UserError
from catchment.flower.messages import reply_to
from catchment.flower.serving import serve_run, start_run
from catchment.runs.directory import load_experiment


def server_app(experiment: Path | None = None) -> ServerApp:
    """An app that runs an experiment file, or goes on with the unfinished run in its directory."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        out = context.run_config.get("directory")
        if not out:
            raise UserError('the run configuration has no "directory"; say where to keep the run')
        directory = Path(str(out)).absolute()
        if (directory / "result.json").exists():
            raise UserError(f"{directory} holds a finished run; choose another directory")
        if not (directory / "experiment.toml").exists():
            if experiment is None:
                raise UserError(f"{directory} holds no run to go on with (it has no experiment.toml)")
            start_run(experiment, directory)
        serve_run(grid, load_experiment(directory), directory)

    return app


server = server_app()
client = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """One message to one device."""
    file = context.node_config.get("policy")
    if not file:
        raise UserError('the node configuration has no "policy"; say where the device.toml of this device is')
    return reply_to(message, RealDevice(Policy.load(Path(str(file)))).answer)[1]


for name in ("hello", "bye"):
    client.query(name)(answer)
for name in ("ask", "fetch"):
    client.train(name)(answer)
