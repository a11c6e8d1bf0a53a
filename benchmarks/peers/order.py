"""What the runner orders of an adapter and hears from it; standard library only, for every environment reads it.

An adapter is a process: `python -m benchmarks.peers.adapters.NAME ORDER`, or `node NAME.mjs ORDER`, the order being one
JSON object with the fields of `Order`. It answers on stdout with one JSON object a line, each with the key `say`; what
it has to tell a person goes to stderr. This is the whole conversation:

| `do` | the adapter says | the runner says (a line on stdin) |
|---|---|---|
| `describe` | `described`: the fields of `About` | |
| `enqueue` | `ready` when it has connected | `go` |
| | `enqueued`: `jobs`, `seconds`, `cpu` | `read FIRST LAST`, if the order said `results`: numbers of jobs that ran |
| | `read`: `jobs`, `wrong`, `seconds`, after 3 s at the latest, 50 of them at once | |
| `pace` | `ready` | `go` |
| | `enqueued` | |
| `work` | `ready` when all is imported and connected that can be before the start | `go` |
| | nothing more: it works until SIGKILL | |

Whatever it cannot do it says instead: `cannot`, with `why` (a peer without bulk is asked for bulk); that is no failure.
Anything else that goes wrong is a traceback on stderr and an exit code other than 0.

Handlers count in a tally (tally.py), never through the queue. There are three tasks:

- `noop(number)` notes that it started, and returns nothing;
- `echo(number, text)` notes that it started, and returns `text`;
- `hold(number, seconds)` notes that it started, sleeps (as the peer's handlers should: `asyncio.sleep`, or `time.sleep`
  in a thread), and notes that it finished.
"""

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

Do = Literal["describe", "enqueue", "pace", "work"]
TaskName = Literal["noop", "echo", "hold"]

WRITTEN = "x"
"""What the text of an `echo` is made of."""


@dataclass(frozen=True)
class Order:
    """One thing to do."""

    do: Do
    url: str = ""
    """Where the peer keeps its jobs: `redis://127.0.0.1:PORT/0`, emptied before a cell; or `sqlite:///PATH` (the path
    is absolute, so four slashes in all), a file that is not there yet in a folder of its own; or `postgresql://...`."""
    tally: str = ""
    """The folder where this process puts its tally: what its handlers started, or in `pace` what it sent."""
    task: TaskName = "noop"
    first: int = 1
    """The number of the first job; the others follow."""
    jobs: int = 0
    """How many jobs to enqueue at most."""
    seconds: float = 0.0
    """After how long to stop enqueueing, whatever `jobs` says; 0: never."""
    callers: int = 1
    """How many enqueue at once, one job at a time each and awaiting its own: tasks of one loop, or threads."""
    batch: int = 1
    """How many jobs go into one call of the peer's bulk enqueue; 1: not by bulk."""
    size: int = 0
    """Of the text of an `echo`, in bytes."""
    hold: float = 0.0
    """For how many seconds a `hold` sleeps."""
    rate: float = 0.0
    """Of `pace`: jobs per second, not slowed by what has not returned yet; 0: one after another, after rests of 5 to
    15 ms."""
    concurrency: int = 10
    """Of `work`: how many jobs run at once in this process."""
    results: bool = False
    """Whether results are read back: turn on whatever of the peer keeps them, in `enqueue` and in `work`."""
    tight: bool = False
    """Of `enqueue` and `work`: set what decides after how long a dead worker's jobs are taken back as low as the peer's
    documentation lets one. Else leave it as it is by default."""
    supervised: bool = False
    """Of `work`: work in two processes of a supervisor of the peer's own, each with this concurrency."""

    def as_json(self) -> str:
        """Return the order as the adapter's one argument."""
        return json.dumps(asdict(self))

    @classmethod
    def of_json(cls, text: str) -> "Order":
        """Return what `as_json` has written."""
        return cls(**json.loads(text))

    def row(self, number: int) -> tuple[object, ...]:
        """Return the arguments of the job with this number."""
        if self.task == "echo":
            return (number, WRITTEN * self.size)
        return (number, self.hold) if self.task == "hold" else (number,)


@dataclass(frozen=True)
class About:
    """What there is to know of a peer: data for the report, and for the runner what it can do."""

    title: str
    settings: dict[str, str]
    """What was set, and what matters though it is the default: name → value and reason."""
    rate: int
    """Roughly how many no-op jobs one process does in a second: a cell has 3 s of that, and 20,000 jobs at most."""
    acknowledges: Literal["after", "before"] = "after"
    """Whether a job is let go after its work, or before it, as what a crash would lose."""
    bulk: bool = False
    """Whether it can enqueue many jobs in one call."""
    results: bool = True
    """Whether results can be read back."""
    at_once: int = 0
    """The most jobs that one process can run at once, whatever is ordered; 0: any number."""
    supervised: bool = False
    """Whether it has a supervisor that sees a worker process die and gives its jobs back."""
    tight: dict[str, str] = field(default_factory=dict[str, str])
    """What is set when an order says `tight`."""
    recovery: str = ""
    """What its documentation (or else its source) says of how long the jobs of a dead worker stay lost, by default."""
    notes: tuple[str, ...] = ()
    """What makes the comparison unfair, and to whom."""
    packages: tuple[str, ...] = ()
    """The installed packages whose versions are named."""
    role: Literal["ours", "peer", "floor"] = "peer"
    interpreter: str = ""
    """Filled in by `describe`, as is `versions`."""
    versions: dict[str, str] = field(default_factory=dict[str, str])
