"""What a job waits for: tokens, the inbox that keeps their maximum, and the evaluation of a wait."""

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tenure.core.ref import Ref
from tenure.core.waiting import (
    Broken,
    Dependent,
    Inbox,
    JobKind,
    Met,
    Need,
    NeedMode,
    Open,
    Plan,
    Skipped,
    Verdict,
    Wait,
    WaitToken,
    added,
    due_at,
    evaluate,
    failure_cause,
    missing_sources,
)

NOW = 1_000
BOXES = ("a", "b")
KEYS = ("1", "2", "3")

tokens = st.builds(
    WaitToken, st.sampled_from(BOXES), st.sampled_from(KEYS), st.sampled_from(("failed", "completed")), st.none()
)
needs = st.builds(
    Need,
    box=st.sampled_from(BOXES),
    count=st.one_of(st.none(), st.integers(0, 3)),
    mode=st.sampled_from(("fail", "count", "tally", "only", "unless")),
    until=st.one_of(st.none(), st.integers(NOW - 2, NOW + 2)),
)
waits = st.builds(Wait, st.lists(needs, min_size=1, max_size=3).map(tuple), st.sampled_from(("all", "any")))
totals = st.dictionaries(st.sampled_from(BOXES), st.integers(0, 3))
randoms = st.randoms(use_true_random=False)


def inbox_of(arrived: Sequence[WaitToken], sealed: dict[str, int] | None = None) -> Inbox:
    inbox = Inbox()
    for token in arrived:
        inbox.deliver(token)
    for box, total in (sealed or {}).items():
        inbox.seal(box, total)
    return inbox


def verdict_of(wait: Wait, *arrived: WaitToken, sealed: dict[str, int] | None = None, now: int = NOW) -> Verdict:
    return evaluate(wait, inbox_of(arrived, sealed), now)


def wait_for(count: int | None, mode: NeedMode = "fail", until: int | None = None) -> Wait:
    return Wait((Need(box="a", count=count, mode=mode, until=until),))


def failed(key: str = "1", box: str = "a") -> WaitToken:
    return WaitToken(box, key, "failed")


def completed(key: str = "1", box: str = "a") -> WaitToken:
    return WaitToken(box, key)


class TestTokens:
    """An inbox keeps the maximum of what arrives under a key."""

    @settings(deadline=None)
    @given(st.lists(tokens, max_size=12), randoms)
    def test_order_and_repeats_do_not_change_an_inbox(self, arrived: list[WaitToken], rng: Random) -> None:
        shuffled = [*arrived, *arrived[::2]]
        rng.shuffle(shuffled)

        assert inbox_of(shuffled) == inbox_of(arrived)

    @settings(deadline=None)
    @given(waits, st.lists(tokens, max_size=12), totals, randoms)
    def test_order_and_repeats_do_not_change_a_verdict(
        self, wait: Wait, arrived: list[WaitToken], sealed: dict[str, int], rng: Random
    ) -> None:
        shuffled = [*arrived, *arrived[::2]]
        rng.shuffle(shuffled)

        assert verdict_of(wait, *shuffled, sealed=sealed) == verdict_of(wait, *arrived, sealed=sealed)

    @settings(deadline=None)
    @given(st.lists(tokens, min_size=5, max_size=5), waits)
    def test_all_permutations_of_five_tokens_agree(self, arrived: list[WaitToken], wait: Wait) -> None:
        verdicts = [verdict_of(wait, *order) for order in permutations(arrived)]

        assert all(verdict == verdicts[0] for verdict in verdicts)

    @settings(deadline=None)
    @given(st.lists(tokens, max_size=12))
    def test_a_key_never_falls_back(self, arrived: list[WaitToken]) -> None:
        inbox, completed_keys = Inbox(), set[tuple[str, str]]()
        for token in arrived:
            before = inbox.box(token.box).arrived
            inbox.deliver(token)
            if token.outcome == "completed":
                completed_keys.add((token.box, token.key))
            assert inbox.box(token.box).arrived >= before
            for box, key in completed_keys:
                assert key in inbox.box(box).completed
                assert key not in inbox.box(box).failed

    def test_a_delivery_says_whether_it_changed_something(self) -> None:
        inbox = Inbox()

        assert [inbox.deliver(failed()), inbox.deliver(failed()), inbox.deliver(completed())] == [True, False, True]
        assert [inbox.deliver(completed()), inbox.deliver(failed())] == [False, False]

    def test_the_first_content_of_a_signal_is_kept(self) -> None:
        inbox = inbox_of([WaitToken("signal:x", "id", body=b"first"), WaitToken("signal:x", "id", body=b"second")])

        assert inbox.box("signal:x").completed["id"].body == b"first"

    def test_the_largest_total_of_a_box_counts(self) -> None:
        inbox = Inbox()

        assert [inbox.seal("a", 2), inbox.seal("a", 3), inbox.seal("a", 2)] == [True, True, False]
        assert inbox.box("a").total == 3


class TestOneNeed:
    """A need counts the keys of one box, and its mode says what a failed one does."""

    @pytest.mark.parametrize(
        ("mode", "one", "with_failure"),
        [("fail", Open, Broken), ("count", Open, Met), ("tally", Open, Broken), ("only", Open, Skipped)],
    )
    def test_a_mode_says_what_a_failed_token_does(
        self, mode: NeedMode, one: type[Verdict], with_failure: type[Verdict]
    ) -> None:
        wait = wait_for(2, mode)

        assert isinstance(verdict_of(wait, completed("1")), one)
        assert isinstance(verdict_of(wait, completed("1"), completed("2")), Met)
        assert isinstance(verdict_of(wait, completed("1"), failed("2")), with_failure)

    def test_unless_counts_failed_tokens_only(self) -> None:
        wait = wait_for(1, "unless")

        assert isinstance(verdict_of(wait), Open)
        assert isinstance(verdict_of(wait, failed()), Met)
        assert isinstance(verdict_of(wait, completed()), Skipped)

    def test_fail_and_only_decide_before_the_other_tokens(self) -> None:
        assert isinstance(verdict_of(wait_for(5), failed()), Broken)
        assert isinstance(verdict_of(wait_for(5, "only"), failed()), Skipped)

    def test_tally_and_count_wait_for_all_tokens(self) -> None:
        assert isinstance(verdict_of(wait_for(2, "tally"), failed()), Open)
        assert isinstance(verdict_of(wait_for(2, "count"), failed()), Open)

    def test_an_open_need_is_met_only_once_it_is_sealed(self) -> None:
        wait = wait_for(None)

        assert isinstance(verdict_of(wait, completed("1"), completed("2")), Open)
        assert isinstance(verdict_of(wait, completed("1"), completed("2"), sealed={"a": 3}), Open)
        assert isinstance(verdict_of(wait, completed("1"), completed("2"), sealed={"a": 2}), Met)

    @pytest.mark.parametrize("mode", ["fail", "count", "tally", "only", "unless"])
    def test_an_empty_sealed_need_is_met(self, mode: NeedMode) -> None:
        assert isinstance(verdict_of(wait_for(None, mode), sealed={"a": 0}), Met)
        assert isinstance(verdict_of(wait_for(0, mode)), Met)

    def test_a_completion_after_the_failure_mends_the_need(self) -> None:
        assert isinstance(verdict_of(wait_for(1), failed(), completed()), Met)
        assert isinstance(verdict_of(wait_for(1, "tally"), failed(), completed()), Met)

    def test_the_first_failed_key_is_named_in_the_order_of_numbers(self) -> None:
        verdict = verdict_of(wait_for(3, "tally"), failed("10"), completed("1"), failed("9"))

        assert isinstance(verdict, Broken)
        assert verdict.key == "9"

    def test_time_meets_a_need_at_its_instant_and_no_earlier(self) -> None:
        wait = wait_for(1, until=NOW)

        assert isinstance(verdict_of(wait, now=NOW - 1), Open)
        verdict = verdict_of(wait, now=NOW)
        assert isinstance(verdict, Met)
        assert [outcome.by for outcome in verdict.outcomes] == ["timer"]
        assert verdict.by_time

    def test_a_token_counts_before_the_time_of_its_need(self) -> None:
        verdict = verdict_of(wait_for(1, until=NOW), completed(), now=NOW + 5)

        assert isinstance(verdict, Met)
        assert [outcome.by for outcome in verdict.outcomes] == ["completed"]

    def test_the_body_of_a_signal_is_that_of_the_counted_one(self) -> None:
        signals = [WaitToken("signal:x", id_, body=id_.encode()) for id_ in ("second", "first")]
        verdict = verdict_of(Wait((Need(box="signal:x", count=2),)), *signals)

        assert isinstance(verdict, Met)
        assert verdict.outcomes[0].body == b"first"


class TestManyNeeds:
    """A wait has several needs, and wants all of them or any one."""

    ALL = Wait((Need(box="a"), Need(box="b")))
    ANY = structs.replace(ALL, want="any")

    def test_all_needs_must_be_met(self) -> None:
        assert isinstance(verdict_of(self.ALL, completed()), Open)
        assert isinstance(verdict_of(self.ALL, completed(), completed(box="b")), Met)

    def test_one_broken_need_breaks_all(self) -> None:
        verdict = verdict_of(self.ALL, completed(), failed(box="b"))

        assert isinstance(verdict, Broken)
        assert (verdict.need.box, [outcome.by for outcome in verdict.outcomes]) == ("b", ["completed", "failed"])

    def test_any_is_met_by_one_need_and_says_which(self) -> None:
        verdict = verdict_of(self.ANY, completed(box="b"))

        assert isinstance(verdict, Met)
        assert [outcome.need.box for outcome in verdict.outcomes] == ["b"]

    def test_any_takes_the_first_need_in_its_own_order(self) -> None:
        verdict = verdict_of(self.ANY, completed(box="b"), completed(box="a"))

        assert isinstance(verdict, Met)
        assert [outcome.need.box for outcome in verdict.outcomes] == ["a"]

    def test_any_is_broken_unless_a_need_is_met(self) -> None:
        assert isinstance(verdict_of(self.ANY, failed()), Broken)
        assert isinstance(verdict_of(self.ANY, failed(), completed(box="b")), Met)

    def test_a_broken_need_decides_before_one_that_skips(self) -> None:
        wait = Wait((Need(box="a", mode="only"), Need(box="b")))

        assert isinstance(verdict_of(wait, failed(), failed(box="b")), Broken)
        assert isinstance(verdict_of(wait, failed(), completed(box="b")), Skipped)

    @settings(deadline=None)
    @given(waits, st.lists(tokens, max_size=8), totals)
    def test_a_wait_is_open_before_its_time_and_not_at_it(
        self, wait: Wait, arrived: list[WaitToken], sealed: dict[str, int]
    ) -> None:
        inbox = inbox_of(arrived, sealed)
        due = due_at(wait, inbox)
        if isinstance(evaluate(wait, inbox, NOW - 3), Open):
            assert due is None or isinstance(evaluate(wait, inbox, due - 1), Open)
            assert due is None or isinstance(evaluate(wait, inbox, due), Met)
            assert due is not None or isinstance(evaluate(wait, inbox, NOW + 3), Open)


class TestSources:
    """The jobs behind the tokens."""

    def test_missing_sources_are_those_of_open_needs(self) -> None:
        wait = Wait((Need(box="a", source=Ref("q", "a")), Need(box="b", source=Ref("q", "b")), Need(box="c")))

        assert [ref.id for _, ref in missing_sources(wait, inbox_of([completed()]))] == ["b"]

    def test_the_failure_cause_is_found_by_source_plan_or_number(self) -> None:
        job, need = Ref("q", "group"), Need(box="members")
        plan = Plan({"report": Ref("r", "~1/report")})

        assert failure_cause(Need(box="a", source=Ref("q", "a")), "1", job, JobKind.JOB, None) == Ref("q", "a")
        assert failure_cause(need, "report", job, JobKind.FLOW, plan) == Ref("r", "~1/report")
        assert failure_cause(need, "17", job, JobKind.GROUP, None) == Ref("q", "group~17")
        assert failure_cause(need, "17", job, JobKind.JOB, None) is None

    def test_dependents_are_added_once_and_in_order(self) -> None:
        first, second = Dependent(Ref("q", "1"), "a", "k"), Dependent(Ref("q", "2"), "a", "k")

        assert added((first,), (second, first)) == (first, second)
