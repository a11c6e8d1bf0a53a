"""arq on Redis, set to poll every ten milliseconds: its speed without the limit of its poll interval."""

from dataclasses import replace

from benchmarks.peers.adapter import main
from benchmarks.peers.adapters.arq import Arq


class ArqPolling(Arq):
    """The same with another poll interval."""

    about = replace(
        Arq.about,
        title="arq, poll_delay 10 ms",
        settings={**Arq.about.settings, "poll_delay": "0.01 s"},
        notes=("Not what arq recommends: an idle worker asks a hundred times a second.",),
        rate=3_600,
    )
    poll_delay = 0.01


if __name__ == "__main__":
    main(ArqPolling)
