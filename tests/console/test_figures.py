"""Figures over time: what workers count is in the API, by queue and task, for those who may see the queue."""

from datetime import UTC, datetime, timedelta

import pytest

from tenure.console.users import User
from tests.console.conftest import EVERY_STORAGE, Shop, served
from tests.console.site import get, path_to

pytestmark = pytest.mark.thorough

FIGURES = path_to("figures")


@EVERY_STORAGE
async def test_figures_count_what_a_worker_has_settled(shop: Shop) -> None:
    # The burst worker of the shop has stopped, so its last delta is stored.
    found = (await shop.get(f"{FIGURES}?queue=mail&since=10m")).json
    sent = (await shop.get(f"{FIGURES}?task=mail.send&since=10m&step=5m")).json["total"]
    counted = [point["figures"] for point in found["points"] if point["figures"] is not None]

    assert (found["queues"], found["task"], found["step"]) == (["mail"], None, 60.0)
    assert len(found["points"]) in (10, 11)
    assert 1 <= len(counted) <= 2
    total = found["total"]
    assert (total["completed"], total["failed"], total["retried"], total["stalled"]) == (1, 2, 0, 0)
    assert (total["waited"]["count"], total["ran"]["count"]) == (3, 3)
    assert 0 < total["ran"]["p50"] <= total["ran"]["p95"] <= total["ran"]["p99"] < 60
    assert (sent["completed"], sent["failed"]) == (1, 0)
    assert (len(found["waited"]), sum(found["waited"]), sum(found["ran"])) == (24, 3, 3)


@EVERY_STORAGE
async def test_the_figures_of_each_queue_are_in_one_answer(shop: Shop) -> None:
    found = (await shop.get(f"{FIGURES}/queues?since=10m&step=5m")).json
    none = (await shop.get(f"{FIGURES}/queues?since=2h&until=1h")).json
    (mail,) = found["queues"]
    counted = [point for point in mail["points"] if point is not None]

    assert (mail["queue"], mail["total"]["completed"], mail["total"]["failed"]) == ("mail", 1, 2)
    assert (found["step"], found["left_out"], len(mail["points"]) in (2, 3)) == (300.0, 0, True)
    assert [sum(point[name] for point in counted) for name in ("ended", "failed", "stalled")] == [3, 2, 0]
    assert all(point["waited"] > 0 for point in counted)
    assert (none["queues"], none["left_out"]) == ([], 0)
    assert (await shop.get(f"{FIGURES}/queues?since=3h")).problem == "invalid-parameter"


async def test_the_queues_with_most_ends_come_first(shop: Shop) -> None:
    for number in range(4):
        await shop.app.find_task("mail.send").options(queue="more").enqueue("ann", password=str(number))
    worker = shop.app.worker(queues=["more"], burst=True)
    await worker.start()
    await worker.wait()
    found = (await shop.get(f"{FIGURES}/queues?limit=1")).json

    assert ([queue["queue"] for queue in found["queues"]], found["left_out"]) == (["more"], 1)


@EVERY_STORAGE
async def test_a_step_without_data_is_null_and_not_zero(shop: Shop) -> None:
    empty = (await shop.get(f"{FIGURES}?queue=pay%2Feu&since=30m&step=10m")).json
    earlier = (await shop.get(f"{FIGURES}?queue=mail&since=2h&until=1h&step=1h")).json
    unknown = (await shop.get(f"{FIGURES}?queue=nowhere&since=5m")).json

    assert {point["figures"] for point in empty["points"]} == {None}
    assert (empty["total"], earlier["total"], unknown["total"]) == (None, None, None)


@EVERY_STORAGE
async def test_hours_are_folded_from_the_same_runs(shop: Shop) -> None:
    since = (datetime.now(UTC) - timedelta(days=20)).isoformat().replace("+", "%2B")
    found = (await shop.get(f"{FIGURES}?queue=mail&since={since}&step=6h")).json

    assert (found["step"], len(found["points"])) == (21_600.0, 81)
    assert (found["total"]["completed"], found["total"]["failed"]) == (1, 2)


@pytest.mark.parametrize(
    ("query", "field", "remedy"),
    [
        ("step=30s", "step", "whole minutes"),
        ("step=90d", "step", "whole minutes"),
        ("since=27h&step=1m", "step", "give a longer step"),
        ("since=1h&until=2h", "since", "earlier since"),
        ("since=0001-01-01T00:00:00Z&step=30d", "since", "earlier since"),
        ("since=yesterday", "since", "is not an instant"),
        ("since=2026-05-03T10:00:00", "since", "is not an instant"),
        ("until=tomorrow", "until", "is not an instant"),
        ("until=9999-12-31T23:59:59Z&step=30d", "step", "give a longer step"),
        ("step=soon", "step", "is not a duration"),
    ],
)
async def test_an_impossible_span_is_refused_with_a_remedy(shop: Shop, query: str, field: str, remedy: str) -> None:
    reply = await shop.get(f"{FIGURES}?{query}")

    assert reply.status == 400, reply.body
    assert [part["pointer"] for part in reply.json["errors"]] == [f"/query/{field}"]
    assert remedy in reply.body.decode()


async def test_the_minutes_of_26_hours_fit_in_one_answer(shop: Shop) -> None:
    assert (await shop.get(f"{FIGURES}?since=26h&step=1m&until=0s")).status == 200


async def test_figures_show_only_queues_that_the_user_may_see(shop: Shop) -> None:
    def of_mail(request: object) -> User:
        return User("ann", "read", queues=("pay*",))

    async with served(shop.app, auth=of_mail) as port:
        found = (await get(port, FIGURES)).json
        asked = (await get(port, f"{FIGURES}?queue=mail&queue=pay%2Feu")).json

    assert (found["queues"], found["total"]) == (["pay/eu"], None)
    assert (asked["queues"], asked["total"]) == (["pay/eu"], None)
