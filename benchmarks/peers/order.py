"""The messages between runner and adapter; standard library only, because every environment reads it.

An adapter is a process: `python -m benchmarks.peers.adapters.NAME ORDER`, or `node NAME.mjs ORDER`, the order being one
JSON object with the fields of `Order`. It answers on stdout with one JSON object a line, each with the key `say`; what
it has to show a user goes to stderr. This is the whole conversation:

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

If it cannot do something it answers `cannot`, with `why` (no bulk calls, for example); that is not a failure.
Any other failure is a traceback on stderr and an exit code other than 0.

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
"""The text of an `echo` is made of these."""


@dataclass(frozen=True)
class Order:
    """One thing to do."""

    do: Do
    url: str = ""
    """Where the peer keeps its jobs: `redis://127.0.0.1:PORT/0`, emptied before a cell; or `sqlite:///PATH` (the path
    is absolute, so four slashes in all), a file that does not exist yet in its own folder; or `postgresql://...`."""
    tally: str = ""
    """The folder where this process puts its tally: what its handlers started, or in `pace` what it sent."""
    task: TaskName = "noop"
    first: int = 1
    """The number of the first job; the others follow."""
    jobs: int = 0
    """How many jobs to enqueue at most."""
    seconds: float = 0.0
    """The time after which to stop enqueueing, independently of `jobs`; 0: never."""
    callers: int = 1
    """How many enqueue at once, one job at a time each and awaiting its own: tasks of one loop, or threads."""
    batch: int = 1
    """How many jobs go into one call of the peer's bulk enqueue; 1: not by bulk."""
    size: int = 0
    """Of the text of an `echo`, in bytes."""
    hold: float = 0.0
    """For how many seconds a `hold` sleeps."""
    rate: float = 0.0
    """Of `pace`: jobs per second, not slowed by calls that have not returned yet; 0: one after another, after pauses of
    5 to 15 ms."""
    concurrency: int = 10
    """Of `work`: how many jobs run at once in this process."""
    results: bool = False
    """Whether results are read back: turn on every option of the peer that keeps them, in `enqueue` and in `work`."""
    tight: bool = False
    """Of `enqueue` and `work`: set the time after which a dead worker's jobs are recovered as low as the peer's
    documentation allows. Otherwise leave the default."""
    supervised: bool = False
    """Of `work`: work in two processes of the peer's own supervisor, each with this concurrency."""

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
    """The facts about a peer: data for the report, and for the runner what it can do."""

    title: str
    settings: dict[str, str]
    """What was set, and important defaults: name → value and reason."""
    rate: int
    """Roughly how many no-op jobs one process does in a second: a cell has 3 s of that, and 20,000 jobs at most."""
    acknowledges: Literal["after", "before"] = "after"
    """Whether a job is acknowledged after its work, or before it, so that a crash loses it."""
    bulk: bool = False
    """Whether it can enqueue many jobs in one call."""
    results: bool = True
    """Whether results can be read back."""
    at_once: int = 0
    """The most jobs that one process can run at once, for any order; 0: any number."""
    supervised: bool = False
    """Whether it has a supervisor that sees a worker process die and recovers its jobs."""
    tight: dict[str, str] = field(default_factory=dict[str, str])
    """The settings of an order with `tight`."""
    recovery: str = ""
    """How long the jobs of a dead worker stay lost by default, by its documentation (or else its source)."""
    notes: tuple[str, ...] = ()
    """What makes the comparison unfair, and for which side."""
    packages: tuple[str, ...] = ()
    """The installed packages whose versions are named."""
    role: Literal["ours", "peer", "floor"] = "peer"
    interpreter: str = ""
    """Filled in by `describe`, as is `versions`."""
    versions: dict[str, str] = field(default_factory=dict[str, str])
