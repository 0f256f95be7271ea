"""What a run remembers of its rounds; their records are in its directory, however many there are."""

from __future__ import annotations

from dataclasses import dataclass, field

from catchment.runs.reading import number_of, shown_headline
from catchment.runs.records import Best, Inversion, Round


@dataclass
class History:
    """The rounds so far, as far as the next ones and the result need them."""

    headline: str = "accuracy"  # of the experiment
    last: Round | None = None
    best: Best | None = None  # the first of the highest accuracies
    curve: list[tuple[int, float]] = field(default_factory=list)  # evaluated rounds and their headline
    validation: list[float] = field(default_factory=list)  # accuracies of the rounds that were validated
    probes: list[Inversion] = field(default_factory=list)
    _strengths: dict[tuple[tuple[str, float], ...], dict[str, float]] = field(default_factory=dict)

    @property
    def strengths(self) -> list[dict[str, float]]:
        """The strengths that attackers used, each once."""
        return list(self._strengths.values())

    def add(self, record: Round) -> None:
        """Another round is over."""
        self.last = record
        if record.accuracy is not None and (self.best is None or record.accuracy > self.best.accuracy):
            self.best = Best(accuracy=record.accuracy, round=record.round)
        if (value := number_of(record, shown_headline(record, self.headline))) is not None:
            self.curve.append((record.round, value))
        if record.validation is not None:
            self.validation.append(record.validation)
        if record.probe is not None:
            self.probes.append(record.probe)
        for event in record.events:
            if event.what == "attacked" and event.numbers is not None:
                self._strengths.setdefault(tuple(event.numbers.items()), event.numbers)
