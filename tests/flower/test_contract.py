"""What we know of Flower beyond its public names. When a release of Flower moves any of it, this says what."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import TIMESTAMP_HEADER, ErrorCode
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflatable_class_registry, inflate_object_from_contents
from flwr.supercore.protobuf.client import ProtobufClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.routers.fleet import node_auth
from flwr.superlink.routers.fleet.router import router
from flwr.supernode.fleet_http_client import FleetHttpClient

from catchment.flower import gate, inflating, messages, store, superlink
from catchment.flower.store import Store


def test_the_release_is_the_one_that_was_looked_at():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    (pinned,) = [one for one in project["project"]["optional-dependencies"]["device"] if one.startswith("flwr")]
    assert pinned == f"flwr=={version('flwr')}"


def test_the_endpoints_that_the_gate_lets_through_are_there_and_others_are_known():
    found = {route.path for route in router.routes}
    assert gate.LONGEST.keys() <= found
    assert found - gate.LONGEST.keys() == OTHERS


OTHERS = {f"{gate.BASE}{name}" for name in ("register-node", "unregister-node", "get-run", "get-fab")}


def test_a_device_says_who_it_is_in_these_headers():
    assert (
        FLEET_HTTP_PUBLIC_KEY_HEADER.encode(), FLEET_HTTP_SIGNATURE_HEADER.encode(), TIMESTAMP_HEADER.encode(),
    ) == (gate.KEY, gate.SIGNATURE, gate.TIMESTAMP)  # fmt: skip


def test_codes_of_errors():
    assert (messages.FAILED, messages.EXPIRED, messages.GONE) == (
        ErrorCode.CLIENT_APP_RAISED_EXCEPTION, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE,
    )  # fmt: skip
    assert Error(messages.GONE, "why").reason == "why"


def test_objects_begin_with_the_name_of_their_kind_and_an_array_lists_its_chunks():
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 1, 1
    array = Array("uint8", (11_000_000,), "catchment", bytes(11_000_000))
    content = RecordDict({"fields": ConfigRecord({"a": 1}), "wire": ArrayRecord({"raw": array})})
    message = Message(content, 1, "train.ask")
    objects = {name: thing.deflate() for name, thing in get_all_nested_objects(message).items()}
    kinds = sorted(raw.split(b" ")[0].decode() for raw in objects.values())
    assert kinds == ["Array", "ArrayChunk", "ArrayChunk", "ArrayRecord", "ConfigRecord", "Message", "RecordDict"]
    assert set(kinds) | {"MetricRecord"} == inflatable_class_registry.keys()
    (whole,) = [raw for raw in objects.values() if raw.startswith(inflating.ARRAY)]
    assert json.loads(whole.partition(b"\0")[2])["arraychunk_ids"] == [0, 0, 1]
    assert len(get_object_head_values_from_object_content(whole)[1]) == 2
    assert max(map(len, objects.values())) < gate.CHUNK
    assert len(objects) < store.OBJECTS
    back = inflate_object_from_contents(get_object_tree(message).object_id, dict(objects))
    assert back.content["wire"]["raw"].data == array.data


def test_the_kind_of_a_message_is_one_word_after_another_and_nothing_that_a_terminal_obeys():
    for kind in ("query.\x1b]0;owned\x07\x1b[2J", "query.a\nTake part? [y/N]: ", "query.a b", "query.", "other.a"):
        with pytest.raises(ValueError, match="Invalid message type"):
            Message(RecordDict({}), 5, kind)


def test_our_store_has_the_methods_that_flowers_handlers_call():
    state = superlink._LinkState(Store(1, 4))
    folder = Path(inspect.getfile(inspect.getmodule(node_auth))).parents[2]
    texts = [path.read_text() for path in folder.rglob("fleet/**/*.py")]
    called = {name for text in texts for name in re.findall(r"\b(?:state|store|object_store)\.(\w+)\(", text)}
    assert called - UNUSED <= {name for name in dir(state) if not name.startswith("_")}


UNUSED = {"create_node", "delete_node", "get_run_info", "get_fab"}  # by endpoints that the gate does not let through


def test_a_device_can_look_at_answers_before_they_are_read():
    client = FleetHttpClient.from_server_address("127.0.0.1:1", True, None, [])
    assert isinstance(client, ProtobufClient)
    assert isinstance(client._client, httpx.Client)
    assert set(client._client.event_hooks) >= {"response"}
