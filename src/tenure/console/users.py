"""Users with roles, tokens, users named by a proxy, and the rule for a console without authentication."""

import hashlib
import hmac
import inspect
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, cast, get_args

from tenure.clock import Clock, SystemClock
from tenure.console.problems import ProblemError, ProblemPart, from_message
from tenure.console.requests import ConsoleRequest
from tenure.core.check import named, several, shown
from tenure.core.events import AnyEvent, EventsTrimmed
from tenure.core.filter_text import NamePattern, pattern_of
from tenure.core.internal import is_internal
from tenure.errors import UsageError
from tenure.health.auth import bearer_of, visible

Role = Literal["read", "operate", "admin"]
"""What a user may do; each role includes the ones before it."""

ROLES: tuple[Role, ...] = get_args(Role)

LEAST_SECRET = 16
"""The least length of a token's secret, in characters."""

WRONG_TOKENS = 20
"""How many wrong tokens one address may send within a minute."""

WINDOW = 60.0
ADDRESSES_KEPT = 1_000
"""For how many addresses wrong tokens are counted; the one that was counted longest ago is forgotten first."""


@dataclass(frozen=True, init=False)
class User:
    """A user of the console. `queues`: names or patterns (`mail.*`) of the queues that the user may see; None: all.

    No pattern matches an internal queue.
    """

    name: str
    role: Role
    queues: tuple[NamePattern, ...] | None

    def __init__(self, name: str, role: Role = "read", *, queues: Sequence[str] | None = None) -> None:
        """Name the user.

        Raises:
            UsageError: a field is invalid.
        """
        patterns = None
        if queues is not None:
            patterns = tuple(pattern_of(named(queue, field="queues")) for queue in several(queues, field="queues"))
        object.__setattr__(self, "name", named(name, field="name"))
        object.__setattr__(self, "role", valid_role(role))
        object.__setattr__(self, "queues", patterns)

    def may(self, role: Role) -> bool:
        """Return True if the user has this role, or one that includes it."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def sees(self, queue: str) -> bool:
        """Return True if the user may see this queue."""
        if self.queues is None:
            return True
        return not is_internal(queue) and any(pattern.matches(queue) for pattern in self.queues)

    def sees_event(self, event: AnyEvent) -> bool:
        """Return True if the user may see this event. Events of no queue concern the whole storage."""
        queue = getattr(event, "queue", None)
        return self.queues is None or isinstance(event, EventsTrimmed) or (queue is not None and self.sees(queue))


def valid_role(role: object) -> Role:
    """Return a role.

    Raises:
        UsageError: the role is unknown.
    """
    for known in ROLES:
        if role == known:
            return known
    raise UsageError(f"role = {shown(role)} is unknown; use one of {', '.join(map(repr, ROLES))}")


Auth = Callable[[ConsoleRequest], "User | Awaitable[User | None] | None"]
"""Returns the user of a request, or None if it has no valid credentials. It may be a coroutine function."""


@dataclass(frozen=True, init=False)
class Token:
    """A token of a user. Only the digest of its secret is kept."""

    user: User
    digest: bytes

    def __init__(self, user: User, secret: str) -> None:
        """Take the secret.

        Raises:
            UsageError: it is shorter than 16 characters, or has characters that a header cannot carry.
        """
        if not visible(secret) or len(secret) < LEAST_SECRET:
            # The message does not show it: it may be a real secret with a typing error, and errors end up in logs.
            raise UsageError(
                f"the secret of {user.name!r} must have at least {LEAST_SECRET} visible ASCII characters, without "
                "spaces; make a random one: openssl rand -hex 32"
            )
        object.__setattr__(self, "user", user)
        object.__setattr__(self, "digest", _digest(secret.encode()))

    @classmethod
    def read(cls, text: str, *, field: str) -> Self:
        """Read `NAME:ROLE:SECRET`.

        Raises:
            UsageError: the text has another form, the role is unknown, or the secret is too short.
        """
        name, _, rest = text.strip().partition(":")
        role, colon, secret = rest.partition(":")
        if not name or not colon or role not in ROLES:
            # Without the secret, for the same reason.
            raise UsageError(f"{field} is not NAME:ROLE:SECRET; ROLE is one of {', '.join(ROLES)}")
        return cls(User(name, valid_role(role)), secret)


class Tokens:
    """Users with bearer tokens: `Tokens("ann:admin:SECRET", "grafana:read:SECRET")`.

    The secret alone is sent: `Authorization: Bearer SECRET`. After 20 wrong tokens within a minute an address gets 429,
    with any token.
    """

    def __init__(self, *tokens: str | Token, clock: Clock | None = None) -> None:
        """Take the tokens, as `Token` or as `NAME:ROLE:SECRET`.

        Raises:
            UsageError: none is given, one is invalid, or two have the same secret.
        """
        read = [
            token if isinstance(token, Token) else Token.read(token, field=f"token {number}")
            for number, token in enumerate(tokens, 1)
        ]
        if not read:
            raise UsageError("no token is given; give one or more: NAME:ROLE:SECRET")
        if len({token.digest for token in read}) < len(read):
            raise UsageError("two tokens have the same secret; make one for each user")
        self._tokens = read
        self._wrong = WrongTokens(SystemClock() if clock is None else clock)

    @classmethod
    def from_file(cls, path: Path | str) -> Self:
        """Read a file with one `NAME:ROLE:SECRET` in each line; empty lines and lines that begin with # are skipped.

        Raises:
            UsageError: the file cannot be read, or holds no token or an invalid one.
        """
        try:
            lines = Path(path).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the token file {path} cannot be read: {error}") from error
        found = [
            Token.read(line, field=f"{path}, line {number}")
            for number, line in enumerate(lines, 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if not found:
            raise UsageError(f"the token file {path} has no token; write NAME:ROLE:SECRET into it")
        return cls(*found)

    def __call__(self, request: ConsoleRequest) -> User | None:
        """Return the user of the token.

        Raises:
            ProblemError: the address has sent too many wrong tokens.
        """
        bearers = [bearer_of(value.encode("latin-1")) for value in request.headers("authorization")]
        if not any(bearers):
            # Another scheme, such as the one by which a proxy has checked the user, is not an attempt.
            return None
        self._wrong.check(request.client)
        digest = _digest(bearers[0]) if len(bearers) == 1 else b""
        found: User | None = None
        for token in self._tokens:
            # All tokens are compared, each in constant time, so that the duration tells nothing about them.
            if hmac.compare_digest(token.digest, digest):
                found = token.user
        if found is None:
            self._wrong.count(request.client)
        return found


class WrongTokens:
    """Counts wrong tokens for each address, and refuses an address that has sent too many."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counts: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def check(self, client: str | None) -> None:
        """Check that an address may send a token.

        Raises:
            ProblemError: it has sent too many wrong ones.
        """
        began, count = self._counts.get(_network_of(client), (0.0, 0))
        left = began + WINDOW - self._clock.uptime()
        if count >= WRONG_TOKENS and left > 0:
            seconds = str(int(left) + 1)
            raise ProblemError(
                "too-many-attempts",
                f"this address has sent {WRONG_TOKENS} wrong tokens within a minute",
                f"try again in {seconds} s",
                headers=[(b"retry-after", seconds.encode())],
            )

    def count(self, client: str | None) -> None:
        """Count a wrong token."""
        address, now = _network_of(client), self._clock.uptime()
        began, count = self._counts.pop(address, (now, 0))
        self._counts[address] = (now, 1) if now - began >= WINDOW else (began, count + 1)
        while len(self._counts) > ADDRESSES_KEPT:
            self._counts.popitem(last=False)


def _network_of(client: str | None) -> str:
    """Return the address of a client; of IPv6 the network, because one machine has many addresses."""
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return client or ""
    if isinstance(address, ipaddress.IPv6Address):
        return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
    return str(address)


class ProxyAuth:
    """Users named in a header by a proxy that has checked them: `ProxyAuth(peers=["10.0.0.0/8"])`.

    The header is believed from these peers only, so they must remove it from requests of others. `"unix"` stands for
    the peers of a Unix socket.

    A browser on the proxy's own machine has an address of these peers, too, and a page of another site could use it
    after a DNS rebinding. So `Host` must be an address, `localhost`, or one of `hosts`: names that the proxy passes on.
    """

    def __init__(
        self,
        user: str = "X-Forwarded-User",
        *,
        peers: Sequence[str],
        role: Role | None = "read",
        roles: Mapping[str, Role] | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        """Name the header, the peers and the roles.

        `roles`: by name of the user. `role`: of all other users; None: other users may not read. `hosts`: names of this
        console in `Host`, without a port.

        Raises:
            UsageError: a peer is not a network, the header or a host is not a name, or a role is unknown.
        """
        self._header = user
        if not isinstance(cast("object", user), str) or not re.fullmatch(r"[!#$%&'*+.^_`|~\w-]+", user, re.ASCII):
            raise UsageError(f"user = {shown(user)} is not the name of a header; write X-Forwarded-User")
        words = [str(peer) for peer in several(peers, field="peers")]
        if not words:
            raise UsageError('peers is empty; name the networks of the proxy, such as peers=["10.0.0.5"]')
        self._unix = "unix" in words
        self._peers = [_network(word) for word in words if word != "unix"]
        self._role: Role | None = None if role is None else valid_role(role)
        self._roles: dict[str, Role] = {name: valid_role(of_user) for name, of_user in (roles or {}).items()}
        names = [str(host) for host in several(hosts, field="hosts")] if hosts else []
        for name in names:
            if not re.fullmatch(r"[\w.-]+", name, re.ASCII):
                raise UsageError(f"hosts = {shown(name)} is not the name of a host; write queue.example.com")
        self._hosts = {name.lower() for name in names}

    def __call__(self, request: ConsoleRequest) -> User | None:
        """Return the user that the proxy names."""
        if not self._trusts(request.client):
            return None
        name = request.header(self._header)
        if not name:
            return None
        if request.client:
            # A browser cannot reach a Unix socket.
            self._require_known_host(request.header("host") or "")
        role: Role | None = self._roles[name] if name in self._roles else self._role  # noqa: SIM401 - typed
        try:
            return None if role is None else User(name, role)
        except UsageError as error:
            parts = [ProblemPart(f"/header/{self._header.lower()}", str(error))]
            raise from_message("invalid-parameter", str(error), errors=parts) from error

    def _require_known_host(self, host: str) -> None:
        name = _host_name(host)
        if name is None or not (name in self._hosts or name == "localhost" or _is_address(name)):
            why = f"Host = {shown(host)} is not a name that this console knows"
            raise ProblemError(
                "unknown-host",
                why,
                "name it: ProxyAuth(hosts=[...]), or tenure console --proxy-host NAME",
                errors=[ProblemPart("/header/host", why)],
            )

    def _trusts(self, client: str | None) -> bool:
        if not client:
            return self._unix
        try:
            address = ipaddress.ip_address(client)
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._peers)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise UsageError(f"peers = {shown(text)} is not a network: {error}; write 10.0.0.0/8 or 127.0.0.1") from None


def local_user(request: ConsoleRequest) -> User:
    """Return the user of a console without authentication: anyone who uses this machine directly.

    Raises:
        ProblemError: the request came from another machine or through a proxy, or its `Host` is not a name of this
            machine, as after a DNS rebinding.
    """
    remedy = "give the console auth=..., or tenure console --token-file FILE"
    forwarded = sorted(
        name
        for name in request.header_names
        if name in ("forwarded", "via", "x-real-ip") or name.startswith("x-forwarded-")
    )
    if forwarded:
        raise _local_only(forwarded[0], f"the header {forwarded[0]} shows that a proxy has passed it on", remedy)
    if not _is_loopback(request.client):
        raise _local_only("", f"{request.client or 'its peer'} is not an address of this machine", remedy)
    host = request.header("host") or ""
    if not _is_local_name(host):
        raise _local_only(
            "host", f"Host = {shown(host)} is not a name of this machine", f"open http://localhost, or {remedy}"
        )
    if request.header("sec-fetch-site") not in (None, "same-origin", "none"):
        raise ProblemError(
            "cross-site",
            "a page of another site has sent the request",
            "open the address itself",
            errors=[ProblemPart("/header/sec-fetch-site", "it is neither same-origin nor none")],
        )
    return User("local", "admin")


def _local_only(header: str, why: str, remedy: str) -> ProblemError:
    parts = [ProblemPart(f"/header/{header}", why)] if header else []
    return ProblemError("local-only", f"the console has no authentication, and {why}", remedy, errors=parts)


def _is_loopback(client: str | None) -> bool:
    try:
        address = ipaddress.ip_address(client or "")
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _is_local_name(host: str) -> bool:
    name = _host_name(host)
    return name == "localhost" or _is_loopback(name)


def _host_name(host: str) -> str | None:
    """Return the name or the address in a `Host`, in lower case and without the port; None if it is invalid."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]]+))(?::\d{1,5})?", host)
    return None if found is None else (found[1] or found[2]).lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def user_of(request: ConsoleRequest, auth: Iterable[Auth]) -> User | None:
    """Return the user of a request, from the first function that knows one; None if none does.

    Raises:
        ProblemError: a function has refused the request, and no other one knows a user.
    """
    refusal: ProblemError | None = None
    for function in auth:
        try:
            found = function(request)
            user = await found if inspect.isawaitable(found) else found
        except ProblemError as error:
            refusal = refusal or error
            continue
        if user is not None:
            if not isinstance(cast("object", user), User):
                raise TypeError(f"auth returned {shown(user)}, which is neither a tenure.console.User nor None")
            return user
    if refusal is not None:
        raise refusal
    return None


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
