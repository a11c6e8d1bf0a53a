"""One declaration, two programs: this one enqueues and knows no handler, another one, which it starts, has it.

The contract stands in both of them only because this is one file; elsewhere it is a module that both import.

Run it: python examples/declare.py
"""

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tenure import Router, TaskOptions, Tenure, UsageError

# ── contract.py: what both sides share ──


@dataclass
class Receipt:
    to: str
    letters: int


mail = Router(prefix="mail.", defaults=TaskOptions(queue="mail", timeout="1m"))


@mail.declare(name="send")
async def send(to: str, text: str = "hello") -> Receipt:
    raise NotImplementedError


# ── worker.py: where the handler is ──


def work(url: str) -> None:
    app = Tenure(url)
    app.include(mail)

    @app.implement(send)
    async def deliver(to: str, text: str = "hello") -> Receipt:
        return Receipt(to, len(text))

    asyncio.run(app.worker().run())


# ── web.py: where jobs come from ──


async def enqueue(url: str) -> None:
    async with Tenure(url) as app:
        app.include(mail)
        print("handlers known here:", sorted(app.tasks) or "none")
        try:
            send("nobody@example.org")
        except UsageError as error:
            print(f"called: {error}")
        job = await send.enqueue("ada@example.org", text="good morning")
        print(f"enqueued {job.id} as {send.name!r} into the queue {send.queue!r}")
        receipt = await job.result(timeout="30s")
        print(f"answered from elsewhere: {receipt}")

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
