"""The server's half: the experiment beside this file, run over whatever SuperNodes are connected."""

from pathlib import Path

from catchment.flower.apps import server_app

app = server_app(Path(__file__).with_name("experiment.toml"))
