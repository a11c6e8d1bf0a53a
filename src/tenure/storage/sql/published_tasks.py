"""The tasks that workers have published, in SQL."""

from collections.abc import Sequence

from tenure.core.published import (
    PUBLISHED_KEPT,
    PUBLISHED_MOST,
    PublishedTask,
    decode_published,
    encode_body,
    encode_schemas,
    replaces,
)
from tenure.storage.sql.lists import json_names
from tenure.storage.sql.transaction import Transaction


def publish(tx: Transaction, tasks: Sequence[PublishedTask], *, renewal: bool) -> None:
    """Store each task, or renew it. Forget those that no worker has published for long."""
    names = json_names([task.name for task in tasks])
    known = {row[0]: row[1:] for row in tx.all("publish.known", {"names": names})}
    for task in tasks:
        digest, at, body = known.get(task.name, ("", 0, ""))
        if not replaces(digest, at, body, task, tx.now, renewal=renewal):
            continue
        if digest == task.digest:
            tx.run("publish.renew", {"name": task.name, "now": tx.now})
            continue
        tx.run(
            "publish.put",
            {
                "name": task.name,
                "digest": task.digest,
                "now": tx.now,
                "body": encode_body(task),
                "schemas": encode_schemas(task),
            },
        )
    tx.run("publish.forget", {"until": tx.now - PUBLISHED_KEPT, "most": PUBLISHED_MOST})


def published(tx: Transaction, names: Sequence[str] | None) -> list[PublishedTask]:
    """Return these tasks with their schemas, or all without."""
    values = {"since": tx.now - PUBLISHED_KEPT}
    if names is None:
        return [decode_published(body, at) for body, at in tx.all("published.all", values)]
    rows = tx.all("published.named", {**values, "names": json_names(names)})
    return [decode_published(body, at, schemas) for body, at, schemas in rows]
