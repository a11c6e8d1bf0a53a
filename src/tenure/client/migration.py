"""Migrations: upgrade older payloads of a task step by step, from the version that their job carries.

version 1 ──from 1──► 2 ──from 2──► 3 ──► checked against the signature, which is that of version 3
a version before `since` ──► refused
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from tenure.core.check import shown, whole
from tenure.errors import UsageError
from tenure.handlers.functions import is_async, yields

Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from the arguments of one version to those of the next, each a dict by name."""


class PayloadVersions(NamedTuple):
    """The version of a task's payload, and the oldest version that it still supports."""

    version: int = 1
    since: int = 1


def versions(version: object, since: object) -> PayloadVersions:
    """Return a task's versions.

    Raises:
        UsageError: they are not whole numbers of at least 1, or `since` is after `version`.
    """
    known = PayloadVersions(whole(version, field="version", least=1), whole(since, field="since", least=1))
    if known.since > known.version:
        raise UsageError(
            f"since = {known.since} is after version = {known.version}: the task would refuse its own jobs; "
            f"write version={known.since}, or lower since"
        )
    return known


class Migrations:
    """The migration steps of one task, from its oldest supported version to its current one."""

    def __init__(self, known: PayloadVersions) -> None:
        self.version, self.since = known
        self._steps: dict[int, Migration] = {}

    def add(self, step: Migration, start: object, *, task: str) -> None:
        """Register the step from one version to the next.

        Raises:
            UsageError: the version is out of range or has a step already, or the step cannot be called with one dict.
        """
        from_version = whole(start, field="from_version", least=1)
        subject = f"the migration of task {task!r} from version {from_version}"
        if from_version >= self.version:
            raise UsageError(f"{subject} exceeds its version {self.version}; write version={from_version + 1}")
        if from_version < self.since:
            raise UsageError(
                f"{subject} would never be used: payloads older than since={self.since} are refused; lower since"
            )
        if from_version in self._steps:
            raise UsageError(f"{subject} is defined twice; leave one of them")
        _check_step(step, subject)
        self._steps[from_version] = step

    def complete(self, *, task: str) -> None:
        """Check that every version from the oldest supported one on has a step.

        Raises:
            UsageError: a step is missing.
        """
        for start in range(self.since, self.version):
            if start not in self._steps:
                raise UsageError(
                    f"task {task!r} has version {self.version} and no migration from version {start}; write "
                    f"@task.migrate(from_version={start}), or since={start + 1} if no such job can be left"
                )

    def upgraded(self, arguments: Any, version: int) -> Any:
        """Return arguments of an older version, upgraded to the task's own. Any exception means that it failed."""
        if version < self.since:
            raise UsageError(
                f"the payload has version {version}, and the task accepts none older than since={self.since}; enqueue "
                "the job again, or lower since and write the migration"
            )
        for start in range(version, self.version):
            if not isinstance(arguments, dict):
                raise TypeError(f"the arguments of version {start} must be a dict, not {shown(arguments)}")
            arguments = self._steps[start](cast(dict[str, Any], arguments))
        return arguments


def _check_step(step: object, subject: str) -> None:
    if not callable(step) or inspect.isclass(step):
        raise UsageError(f"{subject} must be a function, not {shown(step)}")
    if is_async(step) or yields(step):
        raise UsageError(f"{subject} must be a plain function that returns the new arguments, not a coroutine function")
    try:
        inspect.signature(step).bind({})
    except TypeError as error:
        raise UsageError(
            f"{subject} is called with the arguments as one dict: {error}; give it one parameter"
        ) from None
