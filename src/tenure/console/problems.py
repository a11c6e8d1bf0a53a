"""The problems that the API answers with (RFC 9457), a closed list: each type has one status and one title."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from tenure.core.check import shown
from tenure.core.suggestion import did_you_mean
from tenure.http.asgi import Headers

PREFIX = "urn:tenure:problem:"

ProblemName = Literal[
    "unknown-route",
    "method-not-allowed",
    "unauthorized",
    "forbidden",
    "local-only",
    "unknown-host",
    "cross-site",
    "too-many-attempts",
    "read-only",
    "unknown-parameter",
    "invalid-parameter",
    "invalid-filter",
    "invalid-cursor",
    "unknown-queue",
    "unknown-job",
    "unknown-task",
    "unknown-schedule",
    "unknown-worker",
    "unknown-fault",
    "unknown-operation",
    "unknown-webhook",
    "not-json",
    "slow-body",
    "body-too-large",
    "invalid-json",
    "invalid-body",
    "unknown-field",
    "changed",
    "wrong-state",
    "key-held",
    "internal-queue",
    "unconfirmed",
    "too-many-jobs",
    "settings-changed",
    "key-reused",
    "throttled",
    "not-audited",
    "too-many-streams",
    "storage-unavailable",
    "storage-refused",
    "timeout",
    "internal",
]

PROBLEMS: dict[ProblemName, tuple[int, str]] = {
    "unknown-route": (404, "No resource has this path"),
    "method-not-allowed": (405, "The resource does not have this method"),
    "unauthorized": (401, "The request has no valid credentials"),
    "forbidden": (403, "The role of the user does not allow this"),
    "local-only": (403, "Without authentication only this machine has access"),
    "unknown-host": (403, "The Host of the request is not a name of this console"),
    "cross-site": (403, "The request may come from a page of another site"),
    "too-many-attempts": (429, "There were too many wrong tokens"),
    "read-only": (403, "This console is read-only"),
    "unknown-parameter": (400, "A query parameter is unknown"),
    "invalid-parameter": (400, "A parameter is invalid"),
    "invalid-filter": (400, "The filter is invalid"),
    "invalid-cursor": (400, "The cursor is not one that this storage has returned"),
    "unknown-queue": (404, "The queue is unknown"),
    "unknown-job": (404, "The job does not exist"),
    "unknown-task": (404, "The task is unknown"),
    "unknown-schedule": (404, "The schedule does not exist"),
    "unknown-worker": (404, "The worker does not exist"),
    "unknown-fault": (404, "No dead letter has this fault"),
    "unknown-operation": (404, "The bulk operation does not exist"),
    "unknown-webhook": (404, "The webhook is unknown"),
    "not-json": (415, "The body is not declared as JSON"),
    "slow-body": (408, "The body did not arrive in time"),
    "body-too-large": (413, "The body is too large"),
    "invalid-json": (400, "The body is not JSON"),
    "invalid-body": (422, "The body is invalid"),
    "unknown-field": (422, "A field of the body is unknown"),
    "changed": (409, "The job has changed since it was seen"),
    "wrong-state": (409, "The state of the job does not allow this"),
    "key-held": (409, "Another job holds the unique key"),
    "internal-queue": (403, "The queue is one of Tenure's own jobs"),
    "unconfirmed": (409, "The operation has no valid confirmation"),
    "too-many-jobs": (422, "Too many jobs match"),
    "settings-changed": (412, "The settings are not those of If-Match"),
    "key-reused": (422, "The Idempotency-Key was used for another call"),
    "throttled": (429, "The task is throttled"),
    "not-audited": (503, "The act cannot be recorded, so it was not done"),
    "too-many-streams": (503, "There are too many streams"),
    "storage-unavailable": (503, "The storage cannot be reached"),
    "storage-refused": (503, "The storage refuses to answer"),
    "timeout": (504, "The storage did not answer in time"),
    "internal": (500, "The console has failed"),
}
"""The status and the title of each type."""


class ProblemPart(Struct, frozen=True, omit_defaults=True):
    """A part of a request that is invalid. `pointer`: `/query/limit`, `/path/queue`, `/header/host`, `/body/ttl`.

    `position`: the character of the value at which the problem begins; the first one is 1.
    """

    pointer: str
    message: str
    position: int | None = None


class Problem(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a request failed, as `application/problem+json`. `type`: `urn:tenure:problem:` and the name of the problem.

    `remedy`: what to do about it.
    """

    type: str
    title: str
    status: int
    detail: str
    remedy: str = ""
    errors: tuple[ProblemPart, ...] = ()


class ProblemError(Exception):
    """A request is answered with a problem."""

    def __init__(
        self,
        name: ProblemName,
        detail: str,
        remedy: str = "",
        *,
        errors: Sequence[ProblemPart] = (),
        headers: Headers | None = None,
    ) -> None:
        super().__init__(detail)
        status, title = PROBLEMS[name]
        self.headers = headers or []
        self.problem = Problem(
            type=f"{PREFIX}{name}", title=title, status=status, detail=detail, remedy=remedy, errors=tuple(errors)
        )


def from_message(name: ProblemName, message: str, *, errors: Sequence[ProblemPart] = ()) -> ProblemError:
    """Return the problem for an error of ours, whose message ends with the remedy: "what is wrong; what to do"."""
    detail, _, remedy = message.partition("; ")
    return ProblemError(name, detail, remedy, errors=errors)


def bad_parameter(name: ProblemName, parameter: str, message: str, *, position: int | None = None) -> ProblemError:
    """Return the problem for a query parameter, from a message that ends with the remedy."""
    return from_message(name, message, errors=[ProblemPart(f"/query/{parameter}", message, position)])


def not_audited(error: Exception) -> ProblemError:
    """Return the problem for an act that was not done because its audit record could not be written."""
    why = f"the audit log cannot be written: {error}"
    remedy = "try again; tenure doctor names the cause"
    return ProblemError("not-audited", why, remedy, headers=[(b"retry-after", b"2")])


def unknown_job(why: str) -> ProblemError:
    """Return the problem for a job that does not exist."""
    remedy = "look for it in all queues: /api/v1/jobs?filter=id:ID"
    return ProblemError("unknown-job", why, remedy, errors=[ProblemPart("/path/id", why)])


def unknown_name(name: ProblemName, kind: str, value: str, known: Sequence[str]) -> ProblemError:
    """Return the problem for a name in the path that nothing uses, with a suggestion if a known name is similar."""
    end = did_you_mean(value, known) or f"; /api/v1/{kind}s lists all"
    message = f"{kind} {shown(value)} is unknown{end}"
    return from_message(name, message, errors=[ProblemPart(f"/path/{kind}", message)])
