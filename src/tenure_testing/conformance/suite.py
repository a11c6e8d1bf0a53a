"""Combines all parts of the conformance suite in one class."""

from tenure_testing.conformance.breadth import BreadthConformance
from tenure_testing.conformance.collecting import CollectConformance
from tenure_testing.conformance.corners import CornersConformance
from tenure_testing.conformance.crashes import CrashesConformance
from tenure_testing.conformance.dead_letters import DeadLettersConformance
from tenure_testing.conformance.enqueue import EnqueueConformance
from tenure_testing.conformance.events import EventsConformance
from tenure_testing.conformance.exchange import ClaimConformance, SettleConformance
from tenure_testing.conformance.history import HistoryConformance
from tenure_testing.conformance.keys import KeysConformance
from tenure_testing.conformance.lanes import LanesConformance
from tenure_testing.conformance.merging import DebounceConformance, ThrottleConformance, UniqueConformance
from tenure_testing.conformance.notices import NoticesConformance
from tenure_testing.conformance.order import FairnessConformance, OrderConformance
from tenure_testing.conformance.pause import PauseConformance
from tenure_testing.conformance.rates import RatesConformance
from tenure_testing.conformance.reading import ReadingConformance
from tenure_testing.conformance.reclaim import ReclaimConformance
from tenure_testing.conformance.renew import RenewConformance
from tenure_testing.conformance.retention import RetentionConformance
from tenure_testing.conformance.revise import ReviseConformance
from tenure_testing.conformance.schedules import SchedulesConformance
from tenure_testing.conformance.sweep import ElectionConformance, SweepConformance
from tenure_testing.conformance.ttl import TtlConformance
from tenure_testing.conformance.tune import TuneConformance
from tenure_testing.conformance.unknown import UnknownTasksConformance


class StorageConformance(
    EnqueueConformance,
    ClaimConformance,
    BreadthConformance,
    SettleConformance,
    LanesConformance,
    RenewConformance,
    SweepConformance,
    ElectionConformance,
    ReclaimConformance,
    CrashesConformance,
    ReviseConformance,
    TtlConformance,
    KeysConformance,
    UniqueConformance,
    DebounceConformance,
    ThrottleConformance,
    CollectConformance,
    SchedulesConformance,
    OrderConformance,
    FairnessConformance,
    RatesConformance,
    RetentionConformance,
    DeadLettersConformance,
    TuneConformance,
    PauseConformance,
    UnknownTasksConformance,
    ReadingConformance,
    EventsConformance,
    NoticesConformance,
    HistoryConformance,
    CornersConformance,
):
    """All tests of a storage. A subclass defines the fixture `storage`: an opened storage that reads the `clock`."""
