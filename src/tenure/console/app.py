"""The console of an app: mounts in any ASGI application, below any path."""

from collections.abc import Iterable, Sequence

from tenure.app import Tenure
from tenure.console.api import AdminAPI
from tenure.console.routes import Payloads
from tenure.console.users import Auth
from tenure.core.check import of_kind
from tenure.ops.access import StorageAccess


class Console(AdminAPI):
    """The console of an app as a plain ASGI app: `web.mount("/queue", Console(app, auth=Tokens(...)))`.

    It shares the storage of the app, which it opens when it is first used, and needs no lifespan. Without `auth` it
    answers only requests that come from this machine directly, and not through a proxy. `auth` is one or more
    functions that return the `User` of a `ConsoleRequest` or None; `Tokens` and `ProxyAuth` are such functions.

    - `read_only`: refuse all acts.
    - `payloads`: the role that may see arguments, results and data of jobs: "read", "operate" or "never".
    - `redact`: names of fields whose values are left out, in any depth, and in texts such as `password=...`.
    """

    def __init__(
        self,
        app: Tenure,
        *,
        auth: Auth | Sequence[Auth] | None = None,
        read_only: bool = False,
        payloads: Payloads = "read",
        redact: Iterable[str] = (),
    ) -> None:
        """Take the app and the rules.

        Raises:
            UsageError: an option has an invalid value.
        """
        of_kind(app, Tenure, field="app", remedy="write Console(app), with the app of your tasks")

        async def access() -> StorageAccess:
            # The app may get more tasks after this console was made.
            return StorageAccess(
                await app.opened(),
                app.codec.decode,
                app.timing,
                {**app.declared, **app.tasks},
                frozenset(app.tasks),
                app.outbox,
                app.webhooks,
            )

        super().__init__(access, auth=auth, read_only=read_only, payloads=payloads, redact=redact)
