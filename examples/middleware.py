"""Middleware: a log line for every run, a tenant taken from the arguments, and a maintenance mode.

Run it: python examples/middleware.py
"""

import asyncio
from contextvars import ContextVar
from typing import Any

from tenure import JobReleased, Proceed, RunCall, Snooze, Tenure, current_job

app = Tenure("memory://")
tenant: ContextVar[str] = ContextVar("tenant")
maintenance = {"on": True}
seen: list[str] = []


@app.middleware
async def logged(call: RunCall, proceed: Proceed) -> Any:
    """Log how each run of this app ends. It is registered first, so it is the outermost."""
    try:
        value = await proceed()
    except BaseException as error:
        seen.append(f"{call.task}, run {call.job.run}: {type(error).__name__}")
        raise
    seen.append(f"{call.task}, run {call.job.run}: {value}")
    return value


async def for_a_tenant(call: RunCall, proceed: Proceed) -> Any:
    """Put the tenant into a context variable, where the handler and its functions find it; also plain handlers."""
    tenant.set(call.kwargs["tenant"])
    return await proceed()


async def not_in_maintenance(call: RunCall, proceed: Proceed) -> Any:
    """Put the job back, uncharged, while the shop is closed. An exception raised here counts as the handler's."""
    if maintenance["on"]:
        raise Snooze("200ms", "the shop is closed")
    return await proceed()


@app.task(name="bill", middleware=[not_in_maintenance, for_a_tenant])
def bill(cents: int, *, tenant: str) -> str:
    return f"{cents} from {whose()} in run {current_job().run}"


def whose() -> str:
    """Return the tenant of the current run."""
    return tenant.get()


async def main() -> None:
    async with app, app.worker():
        job = await bill.enqueue(100, tenant="acme")
        async for event in job.events():
            if isinstance(event, JobReleased):
                break
        maintenance["on"] = False
        result = await job.result(timeout=10)

    print(*seen, sep="\n")
    assert result.startswith("100 from acme in run ")
    assert seen[0] == "bill, run 1: Snooze"
    assert seen[-1] == f"bill, run {len(seen)}: {result}"


asyncio.run(main())
