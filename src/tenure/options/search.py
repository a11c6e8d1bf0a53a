"""The option `search`: paths to arguments whose values become tags of the job."""

from tenure.core.check import named, several, shown
from tenure.errors import UsageError


def valid_search(value: object) -> tuple[str, ...]:
    """Return the paths, each once. The task that has the option checks them against its arguments.

    Raises:
        UsageError: they are not texts in a list, or one of them has a part without a name.
    """
    paths = tuple(dict.fromkeys(named(path, field="search") for path in several(value, field="search")))
    for path in paths:
        if not all(path.split(".")):
            raise UsageError(
                f"search = {shown(path)} has a part without a name; name an argument, or a field of one: "
                'search=("customer", "order.id")'
            )
    return paths
