"""What lying clients do to their uploads, or to their data."""

from catchment.robust.attack import Attack, AttackPlan, Seen
from catchment.robust.labels import LabelFlip
from catchment.robust.uploads import LIE, OFOM, PAF, SignFlip, lie_z

ATTACKS: dict[str, type[Attack]] = {
    "label-flip": LabelFlip,
    "lie": LIE,
    "ofom": OFOM,
    "paf": PAF,
    "sign-flip": SignFlip,
}

__all__ = ["ATTACKS", "LIE", "OFOM", "PAF", "Attack", "AttackPlan", "LabelFlip", "Seen", "SignFlip", "lie_z"]
