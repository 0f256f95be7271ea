"""The server routine follows the folder of keys, whatever happens to it."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")

from catchment.flower import serving
from catchment.flower.control import ControlFiles
from catchment.flower.store import Store


class Over(BaseException):
    """The end of a thread that never ends."""


def test_the_thread_that_follows_keys_outlives_what_goes_wrong(tmp_path, monkeypatch, capsys):
    store, known = Store(1, 4), {b"a": 0, b"b": 1}
    store.admit(known)
    happens = iter([OSError(24, "Too many open files"), OSError(24, "Too many open files"), {b"b": 1}])
    before = []

    def keys(folder, clients, known):
        before.append(known)
        found = next(happens, None)
        if isinstance(found, OSError):
            raise found
        if found is None:
            raise Over
        return found

    monkeypatch.setattr(serving, "KEYS", 0.0)
    monkeypatch.setattr(serving, "admitted_keys", keys)
    control = ControlFiles(tmp_path)
    with pytest.raises(Over):
        serving._follow(store, tmp_path, 2, known, control)
    assert before == [known, known, known, {b"b": 1}]
    assert [(event["what"], event["client"]) for event in control.new_notices()] == [("revoked", 0)]
    assert not store.may_join(b"a")
    assert capsys.readouterr().out.count("those that are known hold") == 1
