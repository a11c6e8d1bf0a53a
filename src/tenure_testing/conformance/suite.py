"""Combines all parts of the conformance suite in one class."""

from tenure.storage.protocol import Storage
from tenure_testing.conformance.acts import ActsConformance
from tenure_testing.conformance.claim_numbers import ClaimNumbersConformance
from tenure_testing.conformance.collecting import CollectConformance
from tenure_testing.conformance.concurrency_keys import ConcurrencyKeysConformance
from tenure_testing.conformance.crashes import CrashesConformance
from tenure_testing.conformance.dead_letters import DeadLettersConformance
from tenure_testing.conformance.differential import DifferentialConformance
from tenure_testing.conformance.due_order import DueOrderConformance
from tenure_testing.conformance.enqueue import EnqueueConformance
from tenure_testing.conformance.events import EventsConformance
from tenure_testing.conformance.exchange import ClaimConformance, SettleConformance
from tenure_testing.conformance.figures import FiguresConformance
from tenure_testing.conformance.flows import (
    BreakConformance,
    EndsConformance,
    GroupsConformance,
    NoFlowsConformance,
    OutboxConformance,
)
from tenure_testing.conformance.limits import LimitsConformance
from tenure_testing.conformance.many_queues import ManyQueuesConformance
from tenure_testing.conformance.moves import MovesConformance
from tenure_testing.conformance.notices import NoticesConformance
from tenure_testing.conformance.order import FairnessConformance, OrderConformance
from tenure_testing.conformance.pause import PauseConformance
from tenure_testing.conformance.published_tasks import PublishedTasksConformance
from tenure_testing.conformance.rates import RatesConformance
from tenure_testing.conformance.reading import ReadingConformance
from tenure_testing.conformance.reclaim import ReclaimConformance
from tenure_testing.conformance.regressions import RegressionsConformance
from tenure_testing.conformance.renew import RenewConformance
from tenure_testing.conformance.retention import RetentionConformance
from tenure_testing.conformance.revise import ReviseConformance
from tenure_testing.conformance.schedules import SchedulesConformance
from tenure_testing.conformance.sweep import ElectionConformance, SweepConformance
from tenure_testing.conformance.ttl import TtlConformance
from tenure_testing.conformance.tune import TuneConformance
from tenure_testing.conformance.unique_keys import DebounceConformance, ThrottleConformance, UniqueConformance
from tenure_testing.conformance.unknown_tasks import UnknownTasksConformance
from tenure_testing.conformance.waiting import SuspendConformance, TimersConformance, WaitingConformance


class FlowsConformance(
    WaitingConformance,
    SuspendConformance,
    TimersConformance,
    EndsConformance,
    BreakConformance,
    GroupsConformance,
    OutboxConformance,
):
    """All tests of waiting jobs and flows, for a storage whose `flows` is true."""


class StorageConformance(
    EnqueueConformance,
    ClaimConformance,
    ManyQueuesConformance,
    SettleConformance,
    ClaimNumbersConformance,
    RenewConformance,
    SweepConformance,
    ElectionConformance,
    ReclaimConformance,
    CrashesConformance,
    ReviseConformance,
    TtlConformance,
    ConcurrencyKeysConformance,
    UniqueConformance,
    DebounceConformance,
    ThrottleConformance,
    CollectConformance,
    SchedulesConformance,
    OrderConformance,
    FairnessConformance,
    RatesConformance,
    LimitsConformance,
    RetentionConformance,
    DeadLettersConformance,
    FiguresConformance,
    TuneConformance,
    ActsConformance,
    PauseConformance,
    MovesConformance,
    UnknownTasksConformance,
    PublishedTasksConformance,
    ReadingConformance,
    DueOrderConformance,
    EventsConformance,
    NoticesConformance,
    DifferentialConformance,
    RegressionsConformance,
):
    """All tests of a storage. A subclass defines the fixture `storage`: an opened storage that reads the `clock`.

    The subclass is also one of `FlowsConformance`, if the storage keeps flows, or else of `NoFlowsConformance`.
    """

    async def test_the_suite_fits_what_the_storage_keeps(self, storage: Storage) -> None:
        assert isinstance(self, FlowsConformance) == storage.flows
        assert isinstance(self, NoFlowsConformance) == (not storage.flows)
