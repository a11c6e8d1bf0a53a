"""Combines all parts of the conformance suite in one class."""

from tenure.testing.conformance.breadth import BreadthConformance
from tenure.testing.conformance.collecting import CollectConformance
from tenure.testing.conformance.corners import CornersConformance
from tenure.testing.conformance.crashes import CrashesConformance
from tenure.testing.conformance.dead_letters import DeadLettersConformance
from tenure.testing.conformance.enqueue import EnqueueConformance
from tenure.testing.conformance.events import EventsConformance
from tenure.testing.conformance.exchange import ClaimConformance, SettleConformance
from tenure.testing.conformance.history import HistoryConformance
from tenure.testing.conformance.keys import KeysConformance
from tenure.testing.conformance.lanes import LanesConformance
from tenure.testing.conformance.merging import DebounceConformance, ThrottleConformance, UniqueConformance
from tenure.testing.conformance.notices import NoticesConformance
from tenure.testing.conformance.order import FairnessConformance, OrderConformance
from tenure.testing.conformance.pause import PauseConformance
from tenure.testing.conformance.rates import RatesConformance
from tenure.testing.conformance.reading import ReadingConformance
from tenure.testing.conformance.reclaim import ReclaimConformance
from tenure.testing.conformance.renew import RenewConformance
from tenure.testing.conformance.retention import RetentionConformance
from tenure.testing.conformance.revise import ReviseConformance
from tenure.testing.conformance.schedules import SchedulesConformance
from tenure.testing.conformance.sweep import ElectionConformance, SweepConformance
from tenure.testing.conformance.ttl import TtlConformance
from tenure.testing.conformance.tune import TuneConformance
from tenure.testing.conformance.unknown import UnknownTasksConformance


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
