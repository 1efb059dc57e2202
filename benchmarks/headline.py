"""Who is fastest on what: the first thing a reader wants to know, wins and losses alike."""

from dataclasses import dataclass

from encoder_fast.benchmarks.plot_style import family
from encoder_fast.benchmarks.records import blocks, is_baseline, races


@dataclass(frozen=True)
class Standing:
    """One workload of one race, by the ratios to the baseline, whose own is 1.

    `lead` is how many times faster our fastest is than the fastest other engine; None where one of
    them has no ratio.
    """

    race: str
    workload: str
    fastest: str
    ratio: float
    baseline: str
    ours: str | None
    rival: str | None
    lead: float | None

    @property
    def where(self) -> str:
        return f"{self.race} {self.workload}"

    @property
    def ratio_text(self) -> str:
        """Of the fastest to the baseline."""
        return "baseline" if self.fastest == self.baseline else f"{self.ratio:.2f}×"

    @property
    def against(self) -> str:
        """How ours stands."""
        if self.ours is None:
            return "encoder_fast has no ratio here"
        if self.rival is None:
            return f"{self.ours}; no other engine has a ratio here"
        return f"{self.ours}: {self.lead:.2f}× {self.rival}"


def standings(records: list[dict]) -> list[Standing]:
    """One for each workload in which an engine beside the baseline has a steady ratio."""
    found = []
    for kind, suffix in (("model", ""), ("step", " training step")):
        for (model, dtype), race in races(records, kind).items():
            for workload, block in blocks(race).items():
                ratios = _ratios(block)
                if len(ratios) > 1:
                    name = f"{model} {dtype}{suffix}"
                    found.append(_standing(name, workload, ratios, block[0]["baseline"]))
    return found


def _ratios(block: list[dict]) -> dict[str, float]:
    """Of those that have one, largest first."""
    found = {}
    for record in block:
        if is_baseline(record):
            found[record["contender"]] = 1.0
        elif record.get("ratio") and record.get("steady"):
            found[record["contender"]] = record["ratio"]
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _standing(race: str, workload: str, ratios: dict[str, float], baseline: str) -> Standing:
    fastest = next(iter(ratios))
    ours = next((name for name in ratios if family(name) == "encoder_fast"), None)
    rival = next((name for name in ratios if family(name) != "encoder_fast"), None)
    lead = ratios[ours] / ratios[rival] if ours and rival else None
    return Standing(race, workload, fastest, ratios[fastest], baseline, ours, rival, lead)
