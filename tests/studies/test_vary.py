"""Values of settings on the command line."""

import pytest

from catchment.cli.studies import parse_vary
from catchment.errors import ExperimentError


def test_values_are_lists_ranges_or_names():
    given = ["seed=1..3", "method.name=fedavg,fedgkt", "data.clients=[2, 4]", "optimizer.client.lr=0.1,1e-2"]
    assert parse_vary(given) == {
        "seed": [1, 2, 3],
        "method.name": ["fedavg", "fedgkt"],
        "data.clients": [2, 4],
        "optimizer.client.lr": [0.1, 0.01],
    }


def test_a_model_may_have_commas():
    assert parse_vary(["models.client=lenet(8,16,2),mlp"]) == {"models.client": ["lenet(8,16,2)", "mlp"]}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["rounds"], "--vary rounds: expected key=values"),
        (["rounds="], "--vary rounds=: expected key=values"),
        (["=3"], "--vary =3: expected key=values"),
        (["rounds=[]"], "--vary rounds=[]: the list is empty"),
        (["seed=3..1"], "3..1 is empty"),
        (["rounds=1", "rounds=2"], "--vary rounds is given twice"),
    ],
)
def test_what_is_wrong_is_one_sentence(given, sentence):
    with pytest.raises(ExperimentError) as error:
        parse_vary(given)
    assert sentence in str(error.value)
