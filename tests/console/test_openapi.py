"""The description of the admin API is current and complete. Write it with `python -m tests.console.test_openapi`."""

import json
import re
from pathlib import Path
from typing import Any

from tenure.console.openapi import text
from tenure.console.problems import PREFIX, PROBLEMS
from tenure.console.table import TABLE
from tenure.console.users import ROLES
from tests.console.conftest import Shop
from tests.console.site import path_to

COPY = Path(__file__).parent.parent.parent / "docs" / "reference" / "openapi.json"


def described() -> Any:
    return json.loads(COPY.read_text())


def test_the_copy_in_the_docs_is_current() -> None:
    assert COPY.read_text() == text()


def test_each_route_is_described_once_with_its_role() -> None:
    operations = [
        (path, method.upper(), operation)
        for path, methods in described()["paths"].items()
        for method, operation in methods.items()
    ]

    assert {(path, method) for path, method, _ in operations} == {(route.path, route.method) for route in TABLE.routes}
    assert len({operation["operationId"] for *_, operation in operations}) == len(TABLE.routes)
    for _, _, operation in operations:
        assert operation["x-role"] in ROLES
        assert operation["summary"].endswith(".")


def test_each_name_in_a_path_is_a_parameter() -> None:
    for path, methods in described()["paths"].items():
        for operation in methods.values():
            names = [part["name"] for part in operation["parameters"] if part["in"] == "path"]
            assert names == re.findall(r"{(\w+)}", path)


def test_each_reference_leads_to_a_component() -> None:
    whole = described()
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', COPY.read_text())):
        found = whole
        for part in reference.split("/"):
            found = found[part]


def test_the_list_of_problems_is_closed() -> None:
    types = described()["components"]["schemas"]["Problem"]["properties"]["type"]["enum"]

    assert types == [f"{PREFIX}{name}" for name in PROBLEMS]


async def test_the_description_needs_no_user(shop: Shop) -> None:
    # A request through a proxy is refused without authentication.
    reply = await shop.get(path_to("openapi.json"), headers=[("Via", "1.1 proxy")])

    assert reply.status == 200
    assert reply.json == described()


if __name__ == "__main__":
    COPY.write_text(text())
