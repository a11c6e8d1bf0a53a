"""All parts of the suite in one class."""

from holdfast.testing.conformance.breadth import BreadthConformance
from holdfast.testing.conformance.collecting import CollectConformance
from holdfast.testing.conformance.corners import CornersConformance
from holdfast.testing.conformance.crashes import CrashesConformance
from holdfast.testing.conformance.dead_letters import DeadLettersConformance
from holdfast.testing.conformance.enqueue import EnqueueConformance
from holdfast.testing.conformance.events import EventsConformance
from holdfast.testing.conformance.exchange import ClaimConformance, SettleConformance
from holdfast.testing.conformance.history import HistoryConformance
from holdfast.testing.conformance.keys import KeysConformance
from holdfast.testing.conformance.lanes import LanesConformance
from holdfast.testing.conformance.merging import DebounceConformance, ThrottleConformance, UniqueConformance
from holdfast.testing.conformance.notices import NoticesConformance
from holdfast.testing.conformance.order import FairnessConformance, OrderConformance
from holdfast.testing.conformance.pause import PauseConformance
from holdfast.testing.conformance.rates import RatesConformance
from holdfast.testing.conformance.reading import ReadingConformance
from holdfast.testing.conformance.reclaim import ReclaimConformance
from holdfast.testing.conformance.renew import RenewConformance
from holdfast.testing.conformance.retention import RetentionConformance
from holdfast.testing.conformance.revise import ReviseConformance
from holdfast.testing.conformance.schedules import SchedulesConformance
from holdfast.testing.conformance.sweep import ElectionConformance, SweepConformance
from holdfast.testing.conformance.ttl import TtlConformance
from holdfast.testing.conformance.tune import TuneConformance
from holdfast.testing.conformance.unknown import UnknownTasksConformance


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
    """What every storage promises. A subclass gives the fixture `storage`: opened, and reading the `clock`."""
