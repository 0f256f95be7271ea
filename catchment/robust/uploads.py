"""Attacks on whatever a method uploads: weights, logits, features.

PAF, LIE and OFOM are those of appendix A of Cheng et al., FedGEMS, 2021. Where the paper gives no size for its "large
vector", ours is `strength` standard deviations of the honest replies, number by number, in one direction of random
signs. Nor does it say which direction: one that changes from number to number is noise to whoever learns from the
logits of many samples, and with `signs = "classes"` logits have one sign per class, which pushes all samples one way.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor
from statistics import NormalDist
from typing import ClassVar, Literal

from torch import Tensor

from catchment.reading import NonNegative
from catchment.robust.attack import Attack, Seen, fits

Signs = Literal["numbers", "classes"]


@dataclass(frozen=True)
class PAF(Attack):
    """Naive poisoning: the mean of the honest replies, and a large vector (equation 7)."""

    needs_honest: ClassVar[bool] = True
    fields: tuple[str, ...] = ("*",)
    """Patterns of names of tensors, as in `wire.codecs`; buffers must be named."""
    strength: NonNegative = 10.0
    """The size of theta', in standard deviations."""
    signs: Signs = "numbers"
    """The signs of theta': one for each number, or one for each class where theta are logits."""

    def lie(self, seen: Seen, name: str) -> Tensor:
        """theta_m = mean + theta'."""
        return _far(seen, name, self.strength, self.signs)

    def numbers(self, honest: int, attackers: int) -> dict[str, float]:
        """The size of theta'."""
        return {"strength": self.strength}

    def touches(self, name: str) -> bool:
        """As the patterns say."""
        return fits(name, self.fields)


@dataclass(frozen=True)
class OFOM(Attack):
    """One far, one mean (equation 11): the first attacker as in PAF, the others at the mean of it and the honest."""

    needs_honest: ClassVar[bool] = True
    clients: int | tuple[int, ...] = 2
    """How many clients lie, drawn with the seed, or a list of them."""
    fields: tuple[str, ...] = ("*",)
    """Patterns of names of tensors, as in `wire.codecs`; buffers must be named."""
    strength: NonNegative = 10.0
    """The size of theta', in standard deviations."""
    signs: Signs = "numbers"
    """The signs of theta': one for each number, or one for each class where theta are logits."""

    def lie(self, seen: Seen, name: str) -> Tensor:
        """theta_1 = mean + theta'; theta_2 = (sum + theta_1) / (n + 1)."""
        far = _far(seen, name, self.strength, self.signs)
        if seen.place == 0:
            return far
        n = len(seen.honest)
        return (seen.statistics(name)[0] * n + far) / (n + 1)

    def numbers(self, honest: int, attackers: int) -> dict[str, float]:
        """The size of theta'."""
        return {"strength": self.strength}

    def touches(self, name: str) -> bool:
        """As the patterns say."""
        return fits(name, self.fields)


@dataclass(frozen=True)
class LIE(Attack):
    """A little is enough (Baruch et al., 2019): z standard deviations from the mean, in every number.

    Of logits some classes go up and the others down: equation 10 raises all of them, and softmax cancels that.
    """

    needs_honest: ClassVar[bool] = True
    fields: tuple[str, ...] = ("*",)
    """Patterns of names of tensors, as in `wire.codecs`; buffers must be named."""
    z: float | None = None
    """Standard deviations from the mean; without it, the z of the formula, which is 0 or nearly so for one attacker."""

    def lie(self, seen: Seen, name: str) -> Tensor:
        """theta_m = mu + z sigma (equation 10); with a sign for each class where theta are logits."""
        mean, deviation = seen.statistics(name)
        if name == "logits":
            deviation = deviation * seen.signs_of_classes(name)
        return mean + self.numbers(len(seen.honest), seen.attackers)["z"] * deviation

    def numbers(self, honest: int, attackers: int) -> dict[str, float]:
        """The z that is used, and the one that the formula gives."""
        formula = lie_z(honest, attackers)
        return {"z": formula if self.z is None else self.z, "z_formula": formula}

    def touches(self, name: str) -> bool:
        """As the patterns say."""
        return fits(name, self.fields)


def lie_z(honest: int, attackers: int) -> float:
    """Equations 8 and 9: s = floor(n/2 + 1) - attackers honest clients must be won, phi(z) = (n - s) / n.

    0 where there is no such z: nobody is honest, or the attackers are a majority already.
    """
    if not honest:
        return 0.0
    share = (honest - (floor(honest / 2 + 1) - attackers)) / honest
    return NormalDist().inv_cdf(share) if 0 < share < 1 else 0.0


@dataclass(frozen=True)
class SignFlip(Attack):
    """The opposite of the attacker's own reply. Needs no honest replies."""

    fields: tuple[str, ...] = ("*",)
    """Patterns of names of tensors, as in `wire.codecs`; buffers must be named."""
    strength: NonNegative = 1.0
    """How far to the other side."""
    around: Literal["request", "zero"] = "request"
    """`request` flips the change to what the server sent, if it sent it; `zero` flips the reply itself."""

    def lie(self, seen: Seen, name: str) -> Tensor:
        """base - strength * (own - base)."""
        own, base = seen.own.tensors[name], seen.request.tensors.get(name)
        if self.around == "zero" or base is None or base.shape != own.shape:
            return -self.strength * own
        return base - self.strength * (own - base)

    def numbers(self, honest: int, attackers: int) -> dict[str, float]:
        """How far to the other side."""
        return {"strength": self.strength}

    def touches(self, name: str) -> bool:
        """As the patterns say."""
        return fits(name, self.fields)


def _far(seen: Seen, name: str, strength: float, signs: Signs) -> Tensor:
    """mean + theta'."""
    mean, deviation = seen.statistics(name)
    by_class = signs == "classes" and name == "logits"
    return mean + strength * deviation * (seen.signs_of_classes(name) if by_class else seen.signs(name))
