"""pgqueuer in batches as large as the ordered concurrency, without its own limit of jobs at once."""

from dataclasses import replace

from benchmarks.peers.adapter import main
from benchmarks.peers.adapters.pgqueuer import PgQueuerPeer


class Uncapped(PgQueuerPeer):
    """The same with other arguments of `run`."""

    about = replace(
        PgQueuerPeer.about,
        title="pgqueuer, no cap",
        settings={
            **PgQueuerPeer.about.settings,
            "max_concurrent_tasks": "None (default): no limit",
            "batch_size": "as large as the concurrency that is ordered; 10 is its default",
        },
        rate=10_000,
        notes=("More jobs than ordered can run at once: it claims a batch whenever it has started the one before.",),
    )
    capped = False


if __name__ == "__main__":
    main(Uncapped)
