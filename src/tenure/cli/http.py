"""The options by which `serve`, `worker` and `reaper` serve health over HTTP, and their validation."""

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import click
from click.core import ParameterSource

from tenure.cli.session import length
from tenure.clock import Clock
from tenure.errors import UsageError
from tenure.health.asgi import no_outbox
from tenure.health.auth import TokenAuth
from tenure.health.build import OTHERS, PATIENCE, TOKEN_VARIABLE, health_app, thresholds
from tenure.health.process_health import ProcessHealth
from tenure.http.server import HTTPServer, ListenAddress, permitted
from tenure.options import Timing
from tenure.outbox.outbox import Outbox
from tenure.storage.protocol import Storage

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ADDRESS = "127.0.0.1:8080"
CLOSING = 2.0
"""Seconds that a storage gets to close after a command that only reads."""


@dataclass(frozen=True)
class Http:
    """The validated options for serving health."""

    address: ListenAddress
    token: str | None
    backlog: dict[str, int]
    patience: timedelta
    degraded_is: Literal[200, 503]

    def server(
        self,
        storage: Callable[[], Awaitable[Storage]],
        *,
        timing: Callable[[], Timing],
        clock: Clock,
        queues: Callable[[], Iterable[str]] = tuple,
        process_health: Callable[[], ProcessHealth],
        outbox: Callable[[], Outbox | None] = no_outbox,
    ) -> HTTPServer:
        """Return the server, not yet started."""
        app = health_app(
            storage,
            timing=timing,
            clock=clock,
            queues=queues,
            token=self.token,
            unprotected=self.token is None,
            backlog=self.backlog,
            for_=self.patience,
            degraded_is=self.degraded_is,
            process_health=process_health,
            outbox=outbox,
        )
        return HTTPServer(app, self.address, purpose="health", protected=app.protected)


def backlogged(command: F) -> F:
    """Add the options of the backlog's thresholds to a command."""
    return _with(_BACKLOG, command)


def served(command: F) -> F:
    """Add the options of serving health to a command; it gets them as one argument `http`, or None without --http."""
    return served_at(None)(command)


def served_at(default: str | None) -> Callable[[F], F]:
    """Return a decorator that adds these options; `default` is the address to serve on if none is given."""

    def give(command: F) -> F:
        @functools.wraps(command)
        def folded(
            *args: Any,
            http: str | None,
            http_token: str | None,
            http_token_file: Path | None,
            backlog: tuple[str, ...],
            backlog_for: timedelta,
            degraded_is: str,
            **others: Any,
        ) -> Any:
            settings = None
            if http is None:
                _refuse_idle_options()
            else:
                settings = _http_options(
                    http, _token(http_token, http_token_file), backlog_of(backlog, backlog_for), degraded_is
                )
            return command(*args, http=settings, **others)

        where = click.option(
            "--http",
            metavar="[HOST:]PORT",
            default=default,
            show_default=default is not None,
            help="Serve health on this address: /live, /ready, /health/queues, /metrics.",
        )
        return cast(F, _with([where, *_TOKEN, *_BACKLOG, *_DEGRADED], folded))

    return give


def opener(storage: Storage) -> Callable[[], Awaitable[Storage]]:
    """Return a function that opens and returns the storage; it retries a storage that was out of reach before."""

    async def opened() -> Storage:
        await storage.open()
        return storage

    return opened


async def closed(storage: Storage) -> None:
    """Close a storage, unless that takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSING):
            await storage.close()


def backlog_of(values: tuple[str, ...], patience: timedelta) -> tuple[dict[str, int], timedelta]:
    """Return the values of --backlog and --backlog-for.

    Raises:
        UsageError: one of them is invalid.
    """
    backlog: dict[str, int] = {}
    for text in values:
        queue, separator, jobs = text.strip().rpartition("=")
        if not jobs.isdecimal() or (separator and not queue):
            raise UsageError(f"--backlog {text} is not a threshold; write --backlog 1000, or --backlog mail=50")
        backlog[queue or OTHERS] = int(jobs)
    thresholds(backlog, patience, fields=("--backlog", "--backlog-for"))
    return backlog, patience


def _refuse_idle_options() -> None:
    """Refuse options of serving without --http; only on the command line: variables may be for other commands."""
    ctx = click.get_current_context()
    idle = ("http_token", "http_token_file", "backlog", "backlog_for", "degraded_is")
    for param in ctx.command.params:
        if param.name in idle and ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE:
            raise UsageError(f"{param.opts[0]} configures the health server, which is off; give --http as well")


def _http_options(http: str, token: str | None, backlog: tuple[dict[str, int], timedelta], degraded_is: str) -> Http:
    address = ListenAddress.read(http, field="--http")
    # Refuse a token that a header cannot carry now, before any process is started with it.
    TokenAuth(token)
    permitted(
        address,
        protected=token is not None,
        remedy=f"set {TOKEN_VARIABLE} or give --http-token-file, or listen on 127.0.0.1 only",
    )
    return Http(address, token, *backlog, 503 if degraded_is == "503" else 200)


def _token(value: str | None, file: Path | None) -> str | None:
    if file is None:
        # An empty variable was probably meant to hold a token, so it must not disable authentication.
        own = f"{click.get_current_context().auto_envvar_prefix}_HTTP_TOKEN"
        empty = [variable for variable in (own, TOKEN_VARIABLE) if os.environ.get(variable) == ""]
        if value == "" or (value is None and empty):
            raise UsageError(f"the token is empty; fill {empty[0] if empty else TOKEN_VARIABLE}, or unset it")
        return value
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--http-token-file {file} cannot be read: {error}") from error
    if not token:
        raise UsageError(f"--http-token-file {file} is empty; write the token into it")
    return token


def _with(options: list[Callable[[Any], Any]], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


_TOKEN: list[Callable[[Any], Any]] = [
    click.option(
        "--http-token",
        metavar="TOKEN",
        envvar=TOKEN_VARIABLE,
        help=f"The token for /health/queues and /metrics; safer in ${TOKEN_VARIABLE}, which process lists do not show.",
    ),
    click.option(
        "--http-token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="A file with the token.",
    ),
]

_BACKLOG: list[Callable[[Any], Any]] = [
    click.option(
        "--backlog",
        multiple=True,
        metavar="[QUEUE=]JOBS",
        help="How many jobs may wait, in each queue or in this one; more for longer than --backlog-for are unhealthy.",
    ),
    click.option(
        "--backlog-for",
        type=length("--backlog-for"),
        metavar="DURATION",
        default=PATIENCE,
        show_default=True,
        help="How long more jobs than --backlog may wait.",
    ),
]

_DEGRADED: list[Callable[[Any], Any]] = [
    click.option(
        "--degraded-is",
        type=click.Choice(["200", "503"]),
        default="200",
        show_default=True,
        help="The HTTP status if jobs wait and no live worker serves them.",
    ),
]
