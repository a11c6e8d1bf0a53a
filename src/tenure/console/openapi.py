"""The OpenAPI 3.1 description of the admin API, generated from the route table and the records.

docs/reference/openapi.json is a copy, which `python -m tests.console.test_openapi` writes; a test compares both.
"""

import inspect
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from tenure._version import __version__
from tenure.console.problems import PREFIX, PROBLEMS, Problem, ProblemName
from tenure.console.routes import BASE, HeaderName, Route, RouteTable
from tenure.console.table import TABLE

_REF = "#/components/schemas/{name}"

_ACT_PROBLEMS: tuple[ProblemName, ...] = (
    *("invalid-json", "forbidden", "cross-site", "read-only", "slow-body", "body-too-large", "not-json"),
    *("invalid-body", "unknown-field", "not-audited"),
)
"""The problems of all routes that change something."""

_HEADERS: dict[HeaderName, str] = {
    "If-Match": "The ETag of the settings as you have read them; if they are others now, nothing changes.",
    "Idempotency-Key": "A random text of 1 to 255 characters; repeated requests with the same one make one job.",
    "Last-Event-ID": "The id of the last frame that you have received; the stream goes on after it.",
}

_CONTENT = {"application/problem+json": {"schema": {"$ref": _REF.format(name="Problem")}}}


def description(table: RouteTable = TABLE) -> dict[str, Any]:
    """Return the description of the routes."""
    answers = list(dict.fromkeys([route.answer for route in table.routes]))
    queries = list(dict.fromkeys([route.query for route in table.routes]))
    bodies = list(dict.fromkeys([route.body for route in table.routes if route.body is not None]))
    kinds: list[type[Struct]] = [*answers, *queries, *bodies, Problem]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for component in components.values():
        # The docstring of the class. Python 3.13 removes the indentation of docstrings, older ones do not.
        if "description" in component:
            component["description"] = inspect.cleandoc(component["description"])
    by_kind = {kind: _resolved(schema, components) for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in table.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind[route.query])
    for query in queries:
        # Each of its fields is a parameter.
        components.pop(query.__name__, None)
    components["Problem"]["properties"]["type"] = {"enum": [f"{PREFIX}{name}" for name in PROBLEMS]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tenure admin API",
            "version": __version__,
            "description": "Reads a job queue, and acts on it. Instants are RFC 3339 texts in UTC, durations are "
            "seconds. Integers may be greater than 2^53.",
        },
        "servers": [{"url": BASE, "description": "below the place where the console is mounted"}],
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "responses": {"Problem": {"description": "Any other problem; `type` names it.", "content": _CONTENT}},
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def text(table: RouteTable = TABLE) -> str:
    """Return the description as a JSON file."""
    return msgspec.json.format(msgspec.json.encode(description(table)), indent=2).decode() + "\n"


def _operation(route: Route, query: dict[str, Any]) -> dict[str, Any]:
    required = query.get("required", ())
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in route.names
    ]
    for name, schema in query["properties"].items():
        own = {key: value for key, value in schema.items() if key != "description"}
        parameter: dict[str, Any] = {"name": name, "in": "query", "required": name in required, "schema": own}
        if "description" in schema:
            parameter["description"] = schema["description"]
        parameters.append(parameter)
    parameters += [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}, "description": _HEADERS[name]}
        for name in route.headers
    ]
    body: dict[str, Any] = {}
    problems = route.problems
    if route.body is not None:
        schema = {"$ref": _REF.format(name=route.body.__name__)}
        body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
        problems = (*problems, *_ACT_PROBLEMS)
    answer = {
        "description": inspect.cleandoc(route.answer.__doc__ or "").partition("\n\n")[0].replace("\n", " "),
        "content": {_media(route): {"schema": {"$ref": _REF.format(name=route.answer.__name__)}}},
    }
    return {
        "operationId": route.name,
        "summary": inspect.cleandoc(route.handler.__doc__ or "").partition("\n")[0],
        "x-role": route.role,
        "parameters": parameters,
        **body,
        "responses": {
            "200": answer,
            **({} if route.accepted is None else {"202": answer}),
            **_problems(problems),
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }


def _media(route: Route) -> str:
    return "text/event-stream" if route.stream else "application/json"


def _problems(names: Iterable[ProblemName]) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for name in names:
        by_status.setdefault(PROBLEMS[name][0], []).append(f"{PROBLEMS[name][1]} (`{name}`)")
    return {
        str(status): {"description": "; ".join(by_status[status]), "content": _CONTENT} for status in sorted(by_status)
    }


def _resolved(schema: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    found: dict[str, Any] = schema if reference is None else components[reference.rpartition("/")[2]]
    return found
