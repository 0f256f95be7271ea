"""The ledger: every byte once, under the right heading, in an order that does not depend on arrival."""

import itertools

import torch

from catchment.core.ledger import FRAMING, Ledger, summarise
from catchment.exchange import message as messages
from catchment.exchange.message import Message
from catchment.exchange.request import Request, Response


def upload(values=3, note="x"):
    return Message({"weights/a": torch.zeros(values), "steps": torch.tensor(1)}, {"note": note})


def book(ledger, crossings):
    """Book (client, direction, purpose, message)."""
    for client, direction, purpose, message in crossings:
        ledger.book(client, direction, purpose, message, message.size("0" * 45))


CROSSINGS = [
    (2, "down", "training", upload()),
    (0, "down", "training", upload()),
    (0, "up", "training", upload(5)),
    (2, "up", "training", upload(5)),
    (1, "up", "training", upload(5, "a longer note")),
    (1, "down", "evaluation", Message({})),
]


def total_of(rows, direction, purpose):
    return sum(
        len(row["clients"]) * sum(row["tensors"].values())
        for row in rows
        if (row["direction"], row["purpose"]) == (direction, purpose)
    )


def test_one_message_by_hand():
    ledger = Ledger()
    message = upload(3)  # 3 floats of 4 bytes, 1 whole number of 8
    response = Response(7, 0, message)
    ledger.book(7, "up", "training", message, response.size())
    assert ledger.close_round() == [
        {
            "direction": "up",
            "purpose": "training",
            "clients": [7],
            "tensors": {"weights/a": 12, "steps": 8, FRAMING: len(response.to_bytes()) - 20},
        }
    ]
    assert ledger.totals == {("up", "training"): len(response.to_bytes())}


def test_totals_are_the_sum_of_the_entries():
    ledger = Ledger()
    book(ledger, CROSSINGS)
    totals = dict(ledger.totals)
    rows = ledger.close_round()
    assert set(totals) == {("down", "training"), ("up", "training"), ("down", "evaluation")}
    for (direction, purpose), size in totals.items():
        assert total_of(rows, direction, purpose) == size > 0


def test_totals_go_on_over_rounds_and_entries_do_not():
    ledger = Ledger()
    book(ledger, CROSSINGS)
    once = dict(ledger.totals)
    ledger.close_round()
    book(ledger, CROSSINGS)
    assert dict(ledger.totals) == {key: 2 * size for key, size in once.items()}
    assert sum(len(row["clients"]) for row in ledger.close_round()) == len(CROSSINGS)
    assert ledger.close_round() == []


def test_the_rows_do_not_depend_on_the_order_of_arrival():
    expected = None
    for order in itertools.permutations(CROSSINGS):
        ledger = Ledger()
        book(ledger, order)
        rows = ledger.close_round()
        expected = expected or rows
        assert rows == expected


def test_messages_of_one_form_share_a_row_with_every_client_in_it():
    ledger = Ledger()
    book(ledger, CROSSINGS)
    ledger.book(0, "up", "training", upload(5), upload(5).size("0" * 45))
    rows = [(row["direction"], row["purpose"], row["clients"]) for row in ledger.close_round()]
    assert rows == [
        ("down", "evaluation", [1]),
        ("down", "training", [0, 2]),
        ("up", "training", [0, 0, 2]),
        ("up", "training", [1]),
    ]


def test_messages_of_one_form_share_a_row_though_the_form_was_worked_out_twice():
    ledger = Ledger()
    for client in (0, 1):
        messages._layout.cache_clear()
        book(ledger, [(client, "up", "training", upload())])
    assert [row["clients"] for row in ledger.close_round()] == [[0, 1]]


def test_the_summary_tells_training_from_everything_else():
    ledger = Ledger()
    book(ledger, CROSSINGS)
    up = 2 * upload(5).size("0" * 45) + upload(5, "a longer note").size("0" * 45)
    assert ledger.summary() == {
        "up": up,
        "down": 2 * upload().size("0" * 45),
        "evaluation": Message({}).size("0" * 45),
    }


def test_the_summary_of_nothing_is_zero_and_both_directions_of_evaluation_count():
    assert summarise({}) == {"up": 0, "down": 0, "evaluation": 0}
    totals = {("up", "evaluation"): 1, ("down", "evaluation"): 2, ("down", "probe"): 4, ("up", "training"): 8}
    assert summarise(totals) == {"up": 8, "down": 0, "evaluation": 7}


def test_greetings_have_entries_of_their_own_and_are_in_no_sum():
    ledger = Ledger()
    book(ledger, CROSSINGS)
    without = ledger.summary()
    for client in (1, 0):
        ledger.book_greeting(client, "down", 700)
    ledger.book_greeting(1, "up", 20)
    assert ledger.summary() == without
    rows = [row for row in ledger.close_round() if row["purpose"] == "greeting"]
    assert [(row["direction"], row["clients"], row["tensors"]) for row in rows] == [
        ("down", [0, 1], {FRAMING: 700}),
        ("up", [1], {FRAMING: 20}),
    ]
    assert ledger.totals["down", "greeting"] == 1400
    assert not [field for _, field in ledger.fields if field == "greeting"]


def test_the_size_booked_is_that_of_the_bytes_that_would_cross():
    ledger = Ledger()
    request = Request(3, "local_training", 1, 0, 7, upload(100))
    ledger.book(3, "down", "training", request.body, request.size())
    assert ledger.summary()["down"] == len(request.to_bytes())


def test_bytes_by_field_sum_up_coded_parts_and_dicts_of_training():
    ledger = Ledger()
    weights = Message({"weights/a": torch.zeros(2), "weights/b:int8": torch.zeros(3, dtype=torch.int8)})
    for purpose in ("training", "evaluation"):
        ledger.book(0, "up", purpose, weights, 100)
        ledger.book(1, "up", purpose, weights, 100)
    assert not ledger.fields
    ledger.close_round()
    assert ledger.fields == {("up", "weights"): 2 * (8 + 3), ("up", FRAMING): 2 * (100 - 11)}


def test_replies_of_another_machine_are_booked_by_their_length_and_leave_no_layout_behind():
    ours, ledger = upload(3), Ledger()
    book(ledger, [(0, "up", "training", ours)])
    known = messages._layout.cache_info().currsize
    for number in range(5):
        raw = Response(1, 0, Message({f"of-its-own/{number}": torch.zeros(2)})).to_bytes()
        messages._layout.cache_clear()
        response = Response.from_bytes(raw)
        ledger.book(1, "up", "training", response.body, response.size())
        assert response.size() == len(raw)
        assert messages._layout.cache_info().currsize == 0 < known
    same = Response.from_bytes(Response(2, 0, ours).to_bytes())
    ledger.book(2, "up", "training", same.body, same.size())
    assert [row["clients"] for row in ledger.close_round()] == [[0, 2], [1], [1], [1], [1], [1]]
