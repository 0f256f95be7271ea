"""How long simulated devices take, and what profiles and faults are refused."""

import pytest

from catchment.errors import ExperimentError
from catchment.reading import read_table
from catchment.simulation.devices import PROFILES, DeviceProfile, Faults


def test_seconds_are_two_latencies_two_transfers_and_the_work():
    profile = DeviceProfile(compute=100.0, up=1.0, down=2.0, latency=0.5)
    assert profile.seconds(down_bytes=250_000, macs=300, up_bytes=250_000) == 2 * 0.5 + 1.0 + 2.0 + 3.0


def test_an_ideal_device_takes_no_time():
    assert PROFILES["ideal"].seconds(10**9, 10**12, 10**9) == 0


def test_a_link_alone_takes_time_for_bytes_only():
    assert PROFILES["10mbit"].seconds(1_250_000, 10**12, 0) == pytest.approx(1.0)


@pytest.mark.parametrize("values", [{"compute": 0}, {"up": 0}, {"down": -1}, {"latency": -0.1}])
def test_a_device_that_could_not_answer_is_refused(values):
    with pytest.raises(ExperimentError, match=r"a number above 0 is expected|at least 0 is expected"):
        read_table(DeviceProfile, values)


@pytest.mark.parametrize("share", [-0.1, 2.0])
def test_availability_is_a_share(share):
    with pytest.raises(ExperimentError, match=f"availability is {share}; a share from 0 to 1 is expected"):
        read_table(DeviceProfile, {"availability": share})


@pytest.mark.parametrize("name", ["drop", "crash", "delay"])
def test_a_fault_has_a_chance_from_0_to_1(name):
    with pytest.raises(ExperimentError, match=rf"faults\.{name} is 1.5; a chance from 0 to 1 is expected"):
        read_table(Faults, {name: 1.5}, "faults")


def test_a_delay_is_not_negative():
    with pytest.raises(ExperimentError, match=r"faults\.delay_seconds is -1; at least 0 is expected"):
        read_table(Faults, {"delay_seconds": -1}, "faults")
