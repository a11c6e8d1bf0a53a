"""Requests that are made at random from the OpenAPI description, valid and invalid: none makes the console fail."""

import asyncio
import contextlib
from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tenure import Tenure
from tenure.console import Console, User
from tests.console.conftest import ALERTS, HOLDER, fill, tasks_of
from tests.console.site import call, path_to

pytestmark = pytest.mark.thorough

EXAMPLES = 5
"""Requests for each operation."""


def everyone(request: object) -> User:
    return User("ann", "admin")


async def opened() -> tuple[Console, dict[str, list[str]]]:
    """Return a console with jobs in all states, and names that exist, as they stand in a path."""
    app = Tenure("memory://", webhooks=[ALERTS])
    tasks_of(app)
    jobs = await fill(app)
    console = Console(app, auth=everyone)
    groups = (await call(console, path_to("dead", "groups"))).json["groups"]
    return console, {
        "queue": ["mail", "pay%2Feu"],
        "id": [*jobs.values()],
        "task": ["mail.send", "charge"],
        "worker": [HOLDER.id, "web-3"],
        "schedule": ["hourly"],
        "webhook": ["alerts"],
        "fault": [group["fault"] for group in groups],
        "operation": ["none"],
    }


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_no_request_makes_the_console_fail(mode: Any) -> None:
    console, known = asyncio.run(opened())
    schema: Any = schemathesis.openapi.from_asgi("/api/v1/openapi.json", console)
    statuses = Counter[int]()

    def check(operation: Any) -> None:
        @settings(
            max_examples=EXAMPLES,
            database=None,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            phases=[Phase.generate],
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def ask(case: Any, data: st.DataObject) -> None:
            for name in case.path_parameters:
                # Half of the requests name something that exists.
                if data.draw(st.booleans()):
                    case.path_parameters[name] = data.draw(st.sampled_from(known[name]))
            reply = case.call(headers={"authorization": "Bearer token"})
            statuses[reply.status_code] += 1

            assert reply.status_code < 500, reply.text

        # Nothing about a request without parameters can be wrong.
        with contextlib.suppress(Unsatisfiable):
            ask()

    for result in schema.get_all_operations():
        check(result.ok())

    assert statuses[200] > 0 or mode is schemathesis.GenerationMode.NEGATIVE
    assert statuses[422] > 0
