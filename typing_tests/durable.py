"""What the type checkers must know of durable handlers. Read by mypy and pyright, never run."""

from dataclasses import dataclass
from typing import assert_type

from tenure import Retry, Tenure, WaitFor, current_job

app = Tenure("memory://")


@dataclass
class Approval:
    by: str


async def pay(order_id: str, cents: int = 0) -> float:
    return len(order_id) + cents


def label(order_id: str) -> bytes:
    return order_id.encode()


async def durable() -> None:
    job = current_job()
    assert_type(await job.step("pay", pay, "42", cents=1), float)
    assert_type(await job.step("label", label, "42"), bytes)
    assert_type(await job.options(key="42", retry=Retry(3)).step("pay", pay, "42"), float)
    assert_type(job.step_sync("label", label, "42"), bytes)
    await job.step("pay", pay, 42)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    job.options(retry=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def waits() -> None:
    job = current_job()
    assert_type(await job.wait_signal("approved", Approval, timeout="7d"), Approval)
    assert_type(job.wait_signal_sync("approved", Approval), Approval)
    assert_type(job.on_signal("stop", str), WaitFor[str])
    assert_type(await job.first(job.on_signal("stop", str), job.on_sleep("late", "1d")), tuple[str, str | None])
    assert_type(await job.first(job.on_signal("a", str), job.on_signal("b", Approval)), tuple[str, str | Approval])
    assert_type(job.first_sync(job.on_signal("a", str), job.on_signal("b", int)), tuple[str, str | int])
    assert_type(await app.signal("42", "approved", Approval("ann"), queue="shop"), bool)
