"""Conformance tests of `record_act` and `acts`: an act is one record, however often it is written."""

from random import Random

import pytest
from msgspec import structs

from tenure.clock import SECOND
from tenure.core.audit import ACTS_KEPT, LONGEST, OperatorAct, Via, fitted
from tenure.core.retention import TRIM_BATCH, KeepRule
from tenure.storage.cursors import LARGEST
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import ActsPage, ActsQuery, Storage
from tenure.testing.clock import ManualClock
from tenure_testing.conformance.helpers import Conformance

STEPS = 80
ACTORS = ("ann", "bob")
ACTIONS = ("jobs.cancel", "queues.pause")
TARGETS = ("mail/1", "mail")


def new_act(
    id: str = "act",  # noqa: A002 - the field's own name
    *,
    actor: str = "ann",
    via: Via = "api",
    action: str = "jobs.cancel",
    target: str = "mail/1",
    asked: int | None = None,
    verdict: str | None = None,
    count: int | None = None,
) -> OperatorAct:
    """Return an act as a caller writes it: for the first time without a verdict, then with one."""
    return OperatorAct(
        id=id,
        actor=actor,
        role="operate",
        via=via,
        action=action,
        target=target,
        asked=asked,
        verdict=verdict,
        count=count,
    )


async def every_id(storage: Storage, query: ActsQuery | None = None) -> list[str]:
    """Return the ids of all acts that match, from all pages."""
    query = query or ActsQuery()
    found: list[str] = []
    while True:
        page = await storage.acts(query)
        found += [act.id for act in page.acts]
        if page.next is None:
            return found
        query = structs.replace(query, after=page.next)


class ActsConformance(Conformance):
    """The audit log keeps one record of each act of an operator."""

    async def test_an_act_is_kept_as_asked_and_then_as_done(self, storage: Storage, clock: ManualClock) -> None:
        act = OperatorAct(
            id="act",
            actor="ann",
            role="admin",
            via="console",
            action="jobs.cancel",
            target="mail/1",
            change="state=cancelled",
            filter="state:waiting",
            count=3,
            op="op-1",
            reason="the customer has left",
        )
        begin = clock.now()
        asked = await storage.record_act(act)
        kept = await storage.acts(ActsQuery())
        clock.advance(2)
        done = await storage.record_act(structs.replace(asked, verdict="changed", count=2))

        assert asked == structs.replace(act, asked=begin)
        assert kept == ActsPage((asked,))
        assert done == structs.replace(asked, done=begin + 2 * SECOND, verdict="changed", count=2)
        assert await storage.acts(ActsQuery()) == ActsPage((done,))

    async def test_a_repeated_write_leaves_one_record_unchanged(self, storage: Storage, clock: ManualClock) -> None:
        asked = await storage.record_act(new_act())
        clock.advance(1)

        assert await storage.record_act(new_act()) == asked

        done = await storage.record_act(new_act(verdict="done"))
        clock.advance(1)

        assert await storage.record_act(new_act(verdict="done")) == done
        assert await storage.record_act(new_act(verdict="gone")) == done
        assert await storage.record_act(new_act()) == done
        assert (await storage.acts(ActsQuery())).acts == (done,)

    async def test_the_end_of_an_unknown_act_is_written_whole(self, storage: Storage, clock: ManualClock) -> None:
        now = clock.now()
        late = await storage.record_act(new_act("late", asked=now - SECOND, verdict="done"))
        bare = await storage.record_act(new_act("bare", verdict="gone"))

        assert late == new_act("late", asked=now - SECOND, verdict="done").written(None, now)
        assert (late.done, bare.asked, bare.done) == (now, now, now)
        assert (await storage.acts(ActsQuery())).acts == (bare, late)

    async def test_acts_are_listed_newest_first_in_pages(self, storage: Storage, clock: ManualClock) -> None:
        for number in range(5):
            await storage.record_act(new_act(f"act-{number}"))
            # The order is that of the writes, also if the clock is set back.
            clock.step_wall(-1.0)
        await storage.record_act(new_act("act-1", verdict="done"))
        first = await storage.acts(ActsQuery(limit=2))
        then = await storage.acts(ActsQuery(limit=2, after=first.next))
        last = await storage.acts(ActsQuery(limit=2, after=then.next))

        assert [act.id for act in first.acts + then.acts + last.acts] == [f"act-{number}" for number in (4, 3, 2, 1, 0)]
        assert last.next is None
        assert (await storage.acts(ActsQuery(limit=5))).next is None

    async def test_acts_are_selected_by_actor_action_and_target(self, storage: Storage) -> None:
        await storage.record_act(new_act("1"))
        await storage.record_act(new_act("2", actor="bob"))
        await storage.record_act(new_act("3", action="jobs.delete"))
        await storage.record_act(new_act("4", target="mail/11"))
        await storage.record_act(new_act("5", actor="bob", target="mail/11"))

        assert await every_id(storage, ActsQuery(actor="ann", limit=1)) == ["4", "3", "1"]
        assert await every_id(storage, ActsQuery(action="jobs.delete")) == ["3"]
        assert await every_id(storage, ActsQuery(target="mail/1")) == ["3", "2", "1"]
        assert await every_id(storage, ActsQuery(actor="bob", target="mail/11")) == ["5"]
        assert await storage.acts(ActsQuery(actor="an")) == ActsPage()

    async def test_a_rare_act_is_found_behind_many_others(self, storage: Storage) -> None:
        await storage.record_act(new_act("rare", actor="bob"))
        for number in range(1200):
            await storage.record_act(new_act(f"{number}"))

        assert await every_id(storage, ActsQuery(actor="bob")) == ["rare"]
        assert len(await every_id(storage, ActsQuery(limit=700))) == 1201

    async def test_a_cursor_that_is_invalid_is_refused(self, storage: Storage) -> None:
        await storage.record_act(new_act())

        with pytest.raises(ValueError, match="not a cursor"):
            await storage.acts(ActsQuery(after="yesterday"))
        assert await storage.acts(ActsQuery(after="0")) == ActsPage()
        assert [act.id for act in (await storage.acts(ActsQuery(after=str(LARGEST)))).acts] == ["act"]

    async def test_a_new_act_deletes_the_oldest_beyond_the_count(self, storage: Storage) -> None:
        for number in range(6):
            await storage.record_act(new_act(f"{number}"), keep=KeepRule(ACTS_KEPT.age, 4))

        assert await every_id(storage) == ["5", "4", "3", "2"]

        # The record is gone, so the write of its end is a new one.
        await storage.record_act(new_act("0", verdict="done"), keep=KeepRule(ACTS_KEPT.age, 4))

        assert await every_id(storage) == ["0", "5", "4", "3"]

    async def test_a_new_act_deletes_those_that_are_too_old(self, storage: Storage, clock: ManualClock) -> None:
        await storage.record_act(new_act("old"))
        clock.step_wall(ACTS_KEPT.age / SECOND - 1)
        await storage.record_act(new_act("young"))

        assert await every_id(storage) == ["young", "old"]

        clock.step_wall(1.0)
        # Only a new record deletes others.
        await storage.record_act(new_act("old", verdict="done"))
        await storage.record_act(new_act("young", verdict="done"))

        assert await every_id(storage) == ["young", "old"]

        await storage.record_act(new_act("new"))

        assert await every_id(storage) == ["new", "young"]

    async def test_one_write_deletes_a_bounded_number_of_acts(self, storage: Storage, clock: ManualClock) -> None:
        for number in range(TRIM_BATCH + 50):
            await storage.record_act(new_act(f"{number}"))
        await storage.record_act(new_act("first"), keep=KeepRule(ACTS_KEPT.age, 1))

        assert len(await every_id(storage)) == 51

        clock.step_wall(60.0)
        await storage.record_act(new_act("second"), keep=KeepRule(SECOND))

        assert await every_id(storage) == ["second"]

    async def test_texts_of_any_kind_are_kept(self, storage: Storage) -> None:
        long = fitted(new_act("long", target="t" * 10_000, verdict="ü" * 10_000))
        odd = fitted(new_act("odd", actor="a\0b\ud800\u2028'\"", target="😀 \n", action="%s:x"))
        await storage.record_act(long)
        await storage.record_act(odd)
        found = (await storage.acts(ActsQuery())).acts

        assert [(act.actor, act.target, act.verdict) for act in found] == [
            ("a?b?\u2028'\"", "😀 \n", None),
            ("ann", f"{'t' * (LONGEST['target'] - 1)}…", f"{'ü' * (LONGEST['verdict'] - 1)}…"),
        ]
        assert await every_id(storage, ActsQuery(actor=odd.actor, action=odd.action, target=odd.target)) == ["odd"]

    @pytest.mark.parametrize("seed", range(3))
    async def test_any_history_of_acts_equals_that_of_the_model(
        self, storage: Storage, clock: ManualClock, seed: int
    ) -> None:
        dice, model = Random(seed), MemoryStorage(clock=clock)
        for _ in range(STEPS):
            act = new_act(
                f"{dice.randrange(25)}",
                actor=dice.choice(ACTORS),
                action=dice.choice(ACTIONS),
                target=dice.choice(TARGETS),
                verdict=dice.choice((None, "done", "gone")),
                count=dice.choice((None, 0, 2**40)),
            )
            keep = KeepRule(dice.choice((SECOND, 60 * SECOND)), dice.choice((None, 0, 1, 5)))
            clock.step_wall(dice.choice((0.0, 0.5, 5.0, -2.0)))

            assert await storage.record_act(act, keep=keep) == await model.record_act(act, keep=keep)

            query = ActsQuery(
                actor=dice.choice((None, *ACTORS)),
                action=dice.choice((None, *ACTIONS)),
                target=dice.choice((None, None, *TARGETS)),
                limit=dice.choice((1, 3, 50)),
            )
            page, expected = await storage.acts(query), await model.acts(query)

            assert page.acts == expected.acts
            assert await every_id(storage, query) == await every_id(model, query)
