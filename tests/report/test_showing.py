"""Units, names and signs."""

import pytest

from catchment.report import human_bytes, human_seconds
from catchment.report.showing import percent, printable, shortened


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1536, "1.50 KiB"),
        (10 * 1024, "10.0 KiB"),
        (100 * 1024, "100 KiB"),
        (1023 * 1024, "1023 KiB"),
        (1024 * 1024 - 1, "1.00 MiB"),
        (1024**2, "1.00 MiB"),
        (5 * 1024**3, "5.00 GiB"),
        (2 * 1024**4, "2.00 TiB"),
        (3000 * 1024**5, "3000 PiB"),
    ],
)
def test_bytes(count, shown):
    assert human_bytes(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.42, "420 ms"),
        (0.9999, "1.00 s"),
        (4.2, "4.20 s"),
        (42, "42.0 s"),
        (59.97, "1 min 00 s"),
        (65, "1 min 05 s"),
        (3599.7, "1 h 00 min"),
        (9000, "2 h 30 min"),
        (86399, "1 d 00 h"),
        (3 * 86400 + 4 * 3600, "3 d 04 h"),
    ],
)
def test_seconds(seconds, shown):
    assert human_seconds(seconds) == shown


def test_percent():
    assert percent(0.54515) == "54.52"
    assert percent(None) == "\N{EN DASH}"


def test_control_characters_and_lone_surrogates_are_replaced():
    assert printable("a\x1b[31m\ud800\nb é 深") == "a�[31m��b é 深"


def test_long_names_keep_both_ends():
    name = "weights/layer1." + "block." * 20 + "conv2.weight"
    assert len(shortened(name, 30)) == 30
    assert shortened(name, 30).startswith("weights/")
    assert shortened(name, 30).endswith("conv2.weight")
    assert shortened("short", 30) == "short"
