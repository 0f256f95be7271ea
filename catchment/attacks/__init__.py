"""What lying clients do to their uploads, or to their data."""

from catchment.attacks.attack import Attack, Intrusion, Seen
from catchment.attacks.labels import LabelFlip
from catchment.attacks.uploads import LIE, OFOM, PAF, SignFlip, lie_z

ATTACKS: dict[str, type[Attack]] = {
    "label-flip": LabelFlip,
    "lie": LIE,
    "ofom": OFOM,
    "paf": PAF,
    "sign-flip": SignFlip,
}

__all__ = ["ATTACKS", "LIE", "OFOM", "PAF", "Attack", "Intrusion", "LabelFlip", "Seen", "SignFlip", "lie_z"]
