"""Checks the steps and signals of a call before a storage writes anything."""

from collections.abc import Iterable

from tenure.core.steps import SIGNAL_BYTES, step_problem
from tenure.core.waiting import SIGNAL
from tenure.errors import FlowError
from tenure.storage.requests import LeaseRenewal
from tenure.storage.revisions import Revision
from tenure.storage.waiting import DeliverToken


def require_valid_steps(renewals: Iterable[LeaseRenewal]) -> None:
    """Check the steps that renewals bring.

    Raises:
        FlowError: a name is invalid, or a value is too large.
    """
    for renewal in renewals:
        for step in renewal.steps:
            if (problem := step_problem(step)) is not None:
                raise FlowError(f"the job {renewal.ref.id!r} of the queue {renewal.ref.queue!r} {problem}")


def require_valid_signals(revisions: Iterable[Revision]) -> None:
    """Check the signals that revisions bring.

    Raises:
        FlowError: the content of a signal is too large.
    """
    for revision in revisions:
        if not isinstance(revision, DeliverToken) or not revision.token.box.startswith(SIGNAL):
            continue
        size = len(revision.token.body or b"")
        if size > SIGNAL_BYTES:
            raise FlowError(
                f"a signal for the job {revision.ref.id!r} has {size:,} bytes, the limit is {SIGNAL_BYTES:,}"
            )
