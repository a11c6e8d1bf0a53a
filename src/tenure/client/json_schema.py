"""JSON Schemas of the arguments and the result of a task, as its codec stores them."""

from typing import Any, get_origin

import msgspec

from tenure.client.signature import ITEM, Signature
from tenure.client.value_types import AS_TEXT, OneOfType, is_model

_REFS = "#/$defs/"


def schema_of_arguments(signature: Signature) -> dict[str, Any]:
    """Return the schema of an object with the arguments of a call by name.

    `*args` are a list of their name, and `**kwargs` an object.

    Raises:
        Exception: a type has no schema.
    """
    made = _Schemas()
    schema = made.inlined(signature.record)
    properties: dict[str, Any] = schema.setdefault("properties", {})
    if signature.collects:
        (items,) = properties.values()
        properties = schema["properties"] = {ITEM: items.get("items", {})}
        schema["required"] = [ITEM]
    for name, default in signature.plain_defaults().items():
        properties[name] = {**properties[name], "default": default}
    return made.with_definitions({name: part for name, part in schema.items() if name != "title"})


def schema_of_result(signature: Signature) -> dict[str, Any] | None:
    """Return the schema of the result; None if its type is not known.

    Raises:
        Exception: a type has no schema.
    """
    if signature.returns is Any:
        return None
    made = _Schemas()
    return made.with_definitions(made.of(signature.returns))


class _Schemas:
    """Makes the schemas of types, with the definitions to which they refer."""

    def __init__(self) -> None:
        self._definitions: dict[str, Any] = {}
        self._models: dict[Any, dict[str, Any]] = {}
        self._prefixes = 0

    def of(self, hint: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        # Types of one call may have the names of types of another call.
        prefix = self._prefix()
        (schema,), parts = msgspec.json.schema_components(
            [hint], schema_hook=self._custom, ref_template=f"{_REFS}{prefix}{{name}}"
        )
        self._definitions.update({prefix + name: part for name, part in parts.items()})
        return schema

    def inlined(self, record: type) -> dict[str, Any]:
        """Return the schema of a class to which no type refers, not as a definition."""
        name = self.of(record)["$ref"].removeprefix(_REFS)
        schema: dict[str, Any] = self._definitions.pop(name)
        return schema

    def with_definitions(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema together with the definitions."""
        return {**schema, "$defs": self._definitions} if self._definitions else schema

    def _prefix(self) -> str:
        self._prefixes += 1
        return f"{self._prefixes}." if self._prefixes > 1 else ""

    def _custom(self, hint: Any) -> dict[str, Any]:
        """Return the schema of a class that msgspec does not know."""
        cls = get_origin(hint) or hint
        if isinstance(cls, OneOfType):
            members = [self.of(member) for member in cls.members]
            return {"anyOf": [*members, {"type": "null"}] if cls.nullable else members}
        if is_model(cls):
            if hint not in self._models:
                self._models[hint] = self._of_model(hint)
            return self._models[hint]
        # Any value: msgspec takes an empty schema for none.
        return {"type": "string"} if issubclass(cls, AS_TEXT) else {"title": cls.__name__}

    def _of_model(self, model: Any) -> dict[str, Any]:
        prefix = self._prefix()
        schema: dict[str, Any] = model.model_json_schema(by_alias=False, ref_template=f"{_REFS}{prefix}{{model}}")
        self._definitions.update({prefix + name: part for name, part in schema.pop("$defs", {}).items()})
        return schema
