"""`tenure console`: serves pages and the admin API over HTTP, in a process that runs no jobs and needs no user code."""

import asyncio
import contextlib
import logging
import signal
from pathlib import Path

import click

from tenure.cli.access import reach
from tenure.cli.exits import OK
from tenure.cli.http import closed, opener
from tenure.cli.logs import logged, set_up
from tenure.cli.session import CommandSession, naming, storage
from tenure.console.api import AdminAPI
from tenure.console.routes import Payloads
from tenure.console.users import ROLES, Auth, ProxyAuth, Tokens, valid_role
from tenure.errors import StorageError, UsageError
from tenure.health.monitor import LIMIT
from tenure.http.server import HTTPServer, ListenAddress, permitted
from tenure.ops.access import StorageAccess, must_exist

logger = logging.getLogger("tenure.console")

PORT = 8787


@click.command()
@storage
@click.argument("target", required=False, metavar="[MODULE:APP]")
@logged
@click.option("--host", metavar="HOST", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="The port; 0: a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Ask for a token of this file; each line is NAME:ROLE:SECRET, and ROLE is read, operate or admin.",
)
@click.option(
    "--proxy-user",
    metavar="HEADER",
    default="X-Forwarded-User",
    show_default=True,
    help="The header in which a proxy of --proxy-peer names the user.",
)
@click.option(
    "--proxy-peer",
    "proxy_peers",
    multiple=True,
    metavar="NETWORK",
    help="Believe --proxy-user from these addresses: 10.0.0.5 or 10.0.0.0/8.",
)
@click.option(
    "--proxy-host",
    "proxy_hosts",
    multiple=True,
    metavar="NAME",
    help="A name of the console that the proxy passes on as Host. Addresses and localhost need none.",
)
@click.option(
    "--proxy-role",
    type=click.Choice(ROLES),
    default="read",
    show_default=True,
    help="The role of users that a proxy names.",
)
@click.option("--read-only", is_flag=True, help="Refuse all acts; show only.")
@click.option(
    "--payloads",
    type=click.Choice(["read", "operate", "never"]),
    default="read",
    show_default=True,
    help="The role that may see arguments, results and data of jobs.",
)
@click.option(
    "--redact",
    multiple=True,
    type=naming("--redact"),
    metavar="FIELD",
    help="Leave out the values of fields of this name, in any depth, and in texts such as FIELD=value.",
)
@click.pass_obj
def console(
    session: CommandSession,
    target: str | None,
    host: str,
    port: int,
    token_file: Path | None,
    proxy_user: str,
    proxy_peers: tuple[str, ...],
    proxy_hosts: tuple[str, ...],
    proxy_role: str,
    read_only: bool,
    payloads: Payloads,
    redact: tuple[str, ...],
    log_level: str,
    log_format: str,
) -> int:
    """Serve pages that show the queue, and the admin API, which also acts on it, over HTTP, until SIGTERM or SIGINT.

    Runs no jobs, and needs neither workers nor the code of the app: --url is enough. With an app it decodes arguments
    with the app's codec and shows its tasks.

    Without a token file or a proxy it answers only requests that come from this machine directly. On an address that
    other machines can reach it does not start without one of them.
    """
    set_up(log_level, log_format, quiet=session.quiet)
    if target is not None:
        if session.url is not None:
            raise UsageError(f"{target} has a storage of its own; give either --url or the app")
        session.app = target
    address = ListenAddress(host, port)
    auth = _auth(token_file, proxy_user, proxy_peers, proxy_hosts, proxy_role)
    permitted(address, protected=bool(auth), remedy="give --token-file or --proxy-peer, or listen on 127.0.0.1 only")
    access = reach(session)
    must_exist(access.storage)
    open_storage = opener(access.storage)

    async def opened() -> StorageAccess:
        await open_storage()
        return access

    api = AdminAPI(opened, auth=auth or None, read_only=read_only, payloads=payloads, redact=redact)
    asyncio.run(_serve(access, api, address))
    return OK


async def _serve(access: StorageAccess, api: AdminAPI, address: ListenAddress) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    # A storage that is out of reach may come back; a URL that can never work raises UsageError now.
    with contextlib.suppress(StorageError, TimeoutError):
        async with asyncio.timeout(LIMIT):
            await access.storage.open()
    async with HTTPServer(api, address, purpose="the console", protected=api.protected) as server:
        click.echo(f"http://{server.address}/")
        await stopped.wait()
    await closed(access.storage)
    logger.info("the console has stopped")


def _auth(
    token_file: Path | None, header: str, peers: tuple[str, ...], hosts: tuple[str, ...], role: str
) -> list[Auth]:
    auth: list[Auth] = []
    if token_file is not None:
        auth.append(Tokens.from_file(token_file))
    if peers:
        auth.append(ProxyAuth(header, peers=peers, role=valid_role(role), hosts=hosts))
    return auth
