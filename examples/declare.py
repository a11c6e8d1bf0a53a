"""One declaration, two programs: this program only enqueues, and starts another program that has the handler.

Both are in one file here, so it contains the contract. In a real project the contract is a module that both import.

Run it: python examples/declare.py
"""

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tenure import Router, TaskOptions, Tenure, UsageError

# ── contract.py: shared by both programs ──


@dataclass
class Receipt:
    to: str
    letters: int


mail = Router(prefix="mail.", defaults=TaskOptions(queue="mail", timeout="1m"))


@mail.declare(name="send")
async def send(to: str, text: str = "hello") -> Receipt:
    raise NotImplementedError


# ── worker.py: has the handler ──


def work(url: str) -> None:
    app = Tenure(url)
    app.include(mail)

    @app.implement(send)
    async def deliver(to: str, text: str = "hello") -> Receipt:
        return Receipt(to, len(text))

    asyncio.run(app.worker().run())


# ── web.py: enqueues jobs ──


async def enqueue(url: str) -> None:
    async with Tenure(url) as app:
        app.include(mail)
        print("handlers known here:", sorted(app.tasks) or "none")
        try:
            send("ann@example.org")
        except UsageError as error:
            print(f"a direct call is refused: {error}")
        job = await send.enqueue("ada@example.org", text="good morning")
        print(f"enqueued {job.id} as {send.name!r} into the queue {send.queue!r}")
        receipt = await job.result(timeout="30s")
        print(f"result of the other program: {receipt}")

        assert not app.tasks
        assert receipt == Receipt("ada@example.org", 12)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'mail.db'}"
        worker = subprocess.Popen([sys.executable, __file__, url])  # noqa: S603 - this very script
        try:
            asyncio.run(enqueue(url))
        finally:
            worker.terminate()
            print("the worker ended with", worker.wait(30))
        assert worker.returncode == 0


if len(sys.argv) > 1:
    work(sys.argv[1])
else:
    main()
