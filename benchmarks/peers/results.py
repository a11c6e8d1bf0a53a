"""The results of a run, as one JSON file: the report reads this and nothing else."""

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct, field
from msgspec.structs import replace

FORMAT = 1


class Machine(Struct, frozen=True):
    """The machine that it was measured on."""

    system: str
    processor: str
    cores: int
    memory_gib: float
    load: float
    """The load average of the last minute before the start: the other load on the machine."""
    python: str
    """The interpreter of the runner."""
    redis: str | None
    redis_settings: dict[str, str]
    sqlite: str
    postgres: str | None = None
    postgres_settings: dict[str, str] = {}


class Entry(Struct, frozen=True):
    """One peer (or ours, or a floor): its facts (order.About), and where it was run."""

    key: str
    title: str
    storage: str
    role: str
    """`ours`, `peer` or `floor`."""
    acknowledges: str
    """`after` or `before` the work."""
    at_once: int
    """The most jobs that one process can run at once; 0: any number."""
    interpreter: str
    versions: dict[str, str]
    settings: dict[str, str]
    tight: dict[str, str]
    recovery: str
    notes: list[str]
    rate: int
    bulk: bool
    results: bool
    supervised: bool = False


class Sample(Struct, frozen=True):
    """One cell of one peer in one round: the figures by the names of cells.FIGURES, or why there are none."""

    peer: str
    cell: str
    round: int
    took: float
    """Seconds for all of it, starting and filling included."""
    figures: dict[str, float] = {}
    failed: str | None = None
    """It was asked for what it promises, and did not do it: a crash, a hang, a lost job."""
    cannot: str | None = None
    """It does not promise that, and said so."""
    remarks: list[str] = field(default_factory=list[str])
    """Other remarks, such as jobs that ran twice."""


class Quantity(Struct, frozen=True):
    """What one figure of one cell means."""

    cell: str
    figure: str
    title: str
    unit: str
    better: str
    """`more` or `less`; or `none`, if it is shown without a judgement."""
    digits: int = 0


class Results(Struct, frozen=True):
    """All of a run."""

    began: str
    """By the wall clock, UTC."""
    seconds: float
    seed: int
    rounds: int
    """How many rounds were begun; a cell that needs fewer has fewer samples."""
    options: dict[str, str]
    """What the run was asked for, if that was not the default; `quick` or fewer rounds do not support claims."""
    machine: Machine
    peers: list[Entry]
    quantities: list[Quantity]
    samples: list[Sample]
    unavailable: dict[str, str] = {}
    """Peers that could not be installed or started here, and why."""
    format: int = FORMAT


def together(runs: Sequence[Results]) -> Results:
    """Merge several runs on one machine into one, such as one for each storage. Of a cell in two, the later counts.

    Raises:
        ValueError: they were on different machines.
    """
    whole, *others = runs
    for run in others:
        if (run.machine.processor, run.machine.cores) != (whole.machine.processor, whole.machine.cores):
            raise ValueError("these runs were not on one machine")
        later, again = {peer.key for peer in run.peers}, {(sample.peer, sample.cell) for sample in run.samples}
        # The servers are those of the run that had peers on them.
        on = run.machine if any(peer.storage == "postgresql" for peer in run.peers) else whole.machine
        machine = replace(
            whole.machine,
            load=max(whole.machine.load, run.machine.load),
            postgres=on.postgres,
            postgres_settings=on.postgres_settings,
        )
        whole = replace(
            run,
            began=f"{whole.began} and {run.began}",
            seconds=whole.seconds + run.seconds,
            rounds=min(whole.rounds, run.rounds),
            options={**whole.options, **run.options},
            machine=machine,
            peers=[*(peer for peer in whole.peers if peer.key not in later), *run.peers],
            samples=[*(old for old in whole.samples if (old.peer, old.cell) not in again), *run.samples],
            unavailable={**whole.unavailable, **run.unavailable},
        )
    return whole


class Summary(Struct, frozen=True):
    """The rounds of one figure: their median, the least, the most, and how many there were."""

    median: float
    least: float
    most: float
    rounds: int

    @property
    def spread(self) -> float:
        """Half of the distance between the least and the most, as a share of the median."""
        return (self.most - self.least) / 2 / self.median if self.median else 0.0


def summary(values: Sequence[float]) -> Summary | None:
    """Return the summary of these rounds; None without any."""
    return Summary(median(values), min(values), max(values), len(values)) if values else None


def values(samples: Iterable[Sample], *, peer: str, cell: str, figure: str) -> list[float]:
    """Return one figure of one cell of one peer, in the order of the rounds; failed ones have none."""
    return [
        sample.figures[figure]
        for sample in sorted(samples, key=lambda sample: sample.round)
        if (sample.peer, sample.cell) == (peer, cell) and figure in sample.figures
    ]


def percentile(values: Sequence[float], part: float) -> float:
    """Return the least value that `part` percent of the values do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values have no percentile")
    ordered = sorted(values)
    place = -(-len(ordered) * part // 100)
    return ordered[max(int(place) - 1, 0)]
