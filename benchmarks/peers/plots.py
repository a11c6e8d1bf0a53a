"""Draws charts as SVG with matplotlib, in its own environment: `python plots.py FOLDER < charts.json`.

Text and lines have a grey that is readable on white and on black, and the background is transparent.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

GREY = "#7d7d7d"
COLOURS = {"ours": "#e8710a", "after": "#4c8fd6", "outside": "#2f9e77", "before": "#a98bd0", "floor": "#9a9a9a"}
MEANT = {
    "ours": "ours",
    "after": "acknowledges after the work",
    "outside": "another language: an outside mark",
    "before": "acknowledges before the work: a crash loses it",
    "floor": "floor: no queue, the bare storage",
}
WIDTH = 8.6
ROW = 0.27
LEGENDS = 2

mpl.rcParams.update(
    {
        "svg.hashsalt": "tenure",
        "svg.fonttype": "none",  # text stays text: a fifth of the size
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "text.color": GREY,
        "axes.labelcolor": GREY,
        "axes.edgecolor": GREY,
        "xtick.color": GREY,
        "ytick.color": GREY,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
)


def draw(chart: dict[str, Any], folder: Path) -> None:
    """Draw one chart."""
    (lines if chart["kind"] == "lines" else bars)(chart, folder)


def bars(chart: dict[str, Any], folder: Path) -> None:
    """Draw panels below each other, each of horizontal bars in the order given."""
    panels = chart["panels"]
    rows = [len(panel["bars"]) for panel in panels]
    height = sum(rows) * ROW + len(panels) * 0.62 + 0.9
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(WIDTH, height), height_ratios=[row + 0.4 for row in rows], squeeze=False
    )
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        (_decades if chart["log"] else _panel)(panel, axis)
    kinds = [kind for kind in MEANT if any(bar["kind"] == kind for panel in panels for bar in panel["bars"])]
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[kind]) for kind in kinds]
    top = 1 - 0.1 / height
    figure.suptitle(chart["title"], x=0.01, y=top, ha="left", va="top", fontsize=11, fontweight="bold")
    below = 0.2 + 0.17 * -(-len(kinds) // LEGENDS)
    figure.tight_layout(rect=(0, below / height, 1, 1), h_pad=1.2)
    figure.legend(
        handles,
        [MEANT[kind] for kind in kinds],
        loc="lower left",
        ncols=LEGENDS,
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
    )
    _save(figure, folder / chart["file"])


def _panel(panel: dict[str, Any], axis: Any) -> None:
    drawn = panel["bars"][::-1]
    places = range(len(drawn))
    most = max(max(bar["most"] for bar in drawn), 1e-9)
    axis.barh(places, [bar["value"] for bar in drawn], color=[COLOURS[bar["kind"]] for bar in drawn], height=0.72)
    _marked(panel, drawn, axis)
    axis.set_xlim(0, most * 1.14)


def _decades(panel: dict[str, Any], axis: Any) -> None:
    # Points instead of bars: a logarithmic axis has no zero from which a length could be measured.
    drawn = panel["bars"][::-1]
    axis.set_xscale("log")
    axis.grid(axis="x", color=GREY, alpha=0.3, linewidth=0.5)
    for place, bar in enumerate(drawn):
        axis.plot(bar["value"], place, "o", markersize=7, color=COLOURS[bar["kind"]])
    _marked(panel, drawn, axis)
    axis.set_xlim(min(bar["least"] for bar in drawn) / 1.3, max(bar["most"] for bar in drawn) * 2)


def _marked(panel: dict[str, Any], drawn: list[dict[str, Any]], axis: Any) -> None:
    values, places = [bar["value"] for bar in drawn], range(len(drawn))
    spread = [[bar["value"] - bar["least"] for bar in drawn], [bar["most"] - bar["value"] for bar in drawn]]
    axis.errorbar(values, places, xerr=spread, fmt="none", ecolor=GREY, elinewidth=1, capsize=2)
    for place, bar in zip(places, drawn, strict=True):
        axis.annotate(
            bar["value_label"], (bar["most"], place), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    if 0 < (apart := sum(bar["kind"] == "before" for bar in drawn)) < len(drawn):
        axis.axhline(apart - 0.5, color=GREY, linestyle=":", linewidth=0.8)
    axis.set_yticks(list(places), [bar["label"] for bar in drawn])
    for label, bar in zip(axis.get_yticklabels(), drawn, strict=True):
        if bar["kind"] == "ours":
            label.set_fontweight("bold")
            label.set_color(COLOURS["ours"])
    axis.set_ylim(-0.6, len(drawn) - 0.4)
    axis.set_title(panel["title"], loc="left", fontsize=9, color=GREY)
    axis.tick_params(length=2)
    axis.xaxis.set_major_formatter(
        mpl.ticker.FuncFormatter(lambda value, _: f"{value:,.4g}" if value < 1000 else f"{value:,.0f}")
    )


def lines(chart: dict[str, Any], folder: Path) -> None:
    """Draw panels next to each other, each of lines over the logarithm of what grows."""
    panels = chart["panels"]
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 3.4), sharey=True, squeeze=False)
    top = max(point[1] for panel in panels for line in panel["lines"] for point in line["points"])
    for panel, axis in zip(panels, axes[0], strict=True):
        for number, line in enumerate(panel["lines"]):
            across, up = zip(*line["points"], strict=True)
            axis.plot(across, up, marker="os^Dv"[number], markersize=4, linewidth=1.5, label=line["label"])
        axis.axhline(chart["bound"], color=GREY, linestyle="--", linewidth=1)
        axis.set_xscale("log")
        axis.set_ylim(0, max(top, chart["bound"]) * 1.15)
        axis.set_title(panel["title"], loc="left", fontsize=9, color=GREY)
        axis.set_xlabel(panel["below"])
    axes[0][0].set_ylabel("times the first")
    axes[0][0].annotate("the goal", (0.02, chart["bound"]), xycoords=("axes fraction", "data"), va="bottom", fontsize=8)
    axes[0][-1].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(chart["title"], x=0.01, ha="left", fontsize=11, fontweight="bold")
    figure.tight_layout()
    _save(figure, folder / chart["file"])


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
    # It ends some lines with spaces.
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")


if __name__ == "__main__":
    for item in json.load(sys.stdin):
        draw(item, Path(sys.argv[1]))
