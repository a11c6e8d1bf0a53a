"""The list of leases: which run is nearest to a stall, and how much of the storage one request reads."""

import pytest

from tenure.console.users import User
from tenure.ops.leases import leases_view
from tenure.options import Timing
from tenure.storage.protocol import ClaimRequest
from tests.console.conftest import EVERY_STORAGE, HOLDER, Shop, served
from tests.console.site import get, path_to

pytestmark = pytest.mark.thorough

LEASES = path_to("leases")


@EVERY_STORAGE
async def test_a_lease_shows_its_time_left_and_its_last_sign(shop: Shop) -> None:
    found = (await shop.get(LEASES)).json
    (lease,) = found["leases"]

    assert (lease["queue"], lease["id"], lease["task"]) == ("pay/eu", shop.jobs["active"], "charge")
    assert (lease["owner"], lease["worker"], lease["run"]) == (HOLDER.id, "web-3", 1)
    assert 0 < lease["left"] < 60
    assert 0 <= lease["last_sign"] <= lease["ran"] < 60
    assert lease["suspect_until"] is None
    assert (found["active"], found["short"]) == (1, False)


async def test_the_lease_with_the_least_time_left_comes_first(shop: Shop) -> None:
    storage = shop.app.storage
    for _ in range(3):
        await shop.app.find_task("mail.send").options(queue="many").enqueue("ann")
    for _ in range(3):
        await storage.exchange(HOLDER, (), ClaimRequest(("many",), 1))
    found = (await shop.get(f"{LEASES}?order=left")).json
    first = (await shop.get(f"{LEASES}?limit=2")).json

    left = [lease["left"] for lease in found["leases"]]
    assert (len(left), left) == (4, sorted(left))
    assert [lease["id"] for lease in first["leases"]] == [lease["id"] for lease in found["leases"]][:2]
    assert first["active"] == 4
    bounded = await leases_view(storage, await storage.survey(), Timing(), queues=["many", "pay/eu"], limit=3, looks=2)
    assert (len(bounded.leases), bounded.active, bounded.short) == (2, 2, True)


async def test_leases_of_other_queues_are_not_shown(shop: Shop) -> None:
    def of_mail(request: object) -> User:
        return User("ann", "read", queues=("mail",))

    async with served(shop.app, auth=of_mail) as port:
        assert (await get(port, LEASES)).json["leases"] == []
        assert (await get(port, f"{LEASES}?queue=pay%2Feu")).json["leases"] == []
    assert (await shop.get(f"{LEASES}?queue=mail")).json["leases"] == []
    assert (await shop.get(f"{LEASES}?order=longest")).problem == "invalid-parameter"
