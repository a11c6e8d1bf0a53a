"""A strict parser of Prometheus' text format, version 0.0.4: it refuses what a scraper would refuse or misread."""

import math
import re
from dataclasses import dataclass, field

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\S+)")
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf)|NaN")


@dataclass
class Family:
    """A metric: its kind and its samples, by name and labels."""

    kind: str
    meaning: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(
        default_factory=dict[tuple[str, frozenset[tuple[str, str]]], float]
    )

    def __getitem__(self, labels: dict[str, str]) -> float:
        """Return the value of the one sample that has these labels, possibly among others."""
        found = [value for (_, sample), value in self.samples.items() if labels.items() <= dict(sample).items()]
        (value,) = found
        return value

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of the samples of this name that have these labels."""
        return sum(
            value
            for (sample, item), value in self.samples.items()
            if sample == name and labels.items() <= dict(item).items()
        )


def read(body: bytes) -> dict[str, Family]:
    """Return the metrics by name; fails on anything that the format does not allow."""
    text = body.decode()
    assert text.endswith("\n"), "the last line must end with a newline, too"
    families: dict[str, Family] = {}
    meaning: tuple[str, str] | None = None
    current = ""
    for line in text.removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            _, _, name, words = line.split(" ", 3)
            assert name not in families, f"{name} comes twice"
            meaning = (name, words)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert meaning is not None, line
            assert meaning[0] == name, f"{line} does not follow its HELP"
            assert kind in ("counter", "gauge", "histogram"), line
            families[name], current = Family(kind, meaning[1]), name
        else:
            _sample(line, current, families[current])
    for name, family in families.items():
        if family.kind == "histogram":
            _histogram(name, family)
        assert family.kind != "counter" or name.endswith("_total"), name
    return families


def _sample(line: str, current: str, family: Family) -> None:
    found = SAMPLE.fullmatch(line)
    assert found is not None, f"{line!r} is not a sample"
    name, labels, number = found[1], found[2] or "", found[found.re.groups]
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert name in {current + suffix for suffix in suffixes}, f"{line!r} is not of {current}"
    pairs = re.findall(LABEL, labels)
    assert len({label for label, _ in pairs}) == len(pairs), f"{line!r} names a label twice"
    assert NUMBER.fullmatch(number), f"{line!r} has no number"
    key = (name, frozenset((label, _plain(value)) for label, value in pairs))
    assert key not in family.samples, f"{line!r} comes twice"
    value = float(number)
    assert family.kind == "gauge" or value >= 0, line
    family.samples[key] = value


def _plain(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n"}.get(found[1], found[1]), value)


def _histogram(name: str, family: Family) -> None:
    buckets: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            end = float(dict(labels)["le"])
            rest = frozenset(pair for pair in labels if pair[0] != "le")
            buckets.setdefault(rest, []).append((end, value))
    for labels, found in buckets.items():
        counts = [count for _, count in sorted(found)]
        assert counts == sorted(counts), f"the buckets of {name} are not cumulative"
        assert max(found)[0] == math.inf, f"{name} has no bucket without an end"
        assert counts[-1] == family.samples[f"{name}_count", labels]
        assert (f"{name}_sum", labels) in family.samples
