"""Which URLs and which addresses a webhook may send to: public ones, and networks that its declaration opens.

A URL that a developer gives may lead into the own network by accident, and the owner of a public name may let it point
there on purpose (SSRF). So the URL is checked when the webhook is declared, and each address of its host at each
attempt, after the name was resolved.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from msgspec import Struct

from tenure.core.check import several, shown
from tenure.errors import UsageError

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# The tables of IANA, and more. `is_global` of the standard library differs between versions of Python, and counts
# multicast and translated addresses as global.
_NOT_PUBLIC_4: tuple[IPv4Network, ...] = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # networks of providers; metadata of a cloud at 100.100.100.200
        "127.0.0.0/8",
        "168.63.129.16/32",  # metadata of a cloud, although the address is public elsewhere
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_PUBLIC_6 = IPv6Network("2000::/3")
_NOT_PUBLIC_6: tuple[IPv6Network, ...] = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # Teredo, ORCHID and the like
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: holds an IPv4 address
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")

_LONGEST = 2_000
_TOKEN = 8
"""From which length on a part of a URL may be a token."""
_PARTS = re.compile(r"[/?&=]")
_URL = re.compile(
    r"""(?P<scheme>https?)://
    (?P<host>\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)
    (?::(?P<port>[0-9]{1,5}))?
    (?P<target>(?:/[!-~]*)?(?:\?[!-~]*)?)""",
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Receiver(Struct, frozen=True):
    """Where a webhook sends: the parts of its URL. `target`: path and query; `name`: the header Host."""

    scheme: str
    host: str
    port: int
    target: str
    name: str

    @property
    def secure(self) -> bool:
        """True if it speaks TLS."""
        return self.scheme == "https"

    @property
    def origin(self) -> str:
        """The URL without its path and query, which may hold a token: `https://example.com/…`."""
        return f"{self.scheme}://{self.name}/…"

    def hides(self, text: str) -> str:
        """Return the text without the longer parts of the path and the query. Error pages often quote the URL."""
        parts = {self.target, *self.target.split("?", 1), *_PARTS.split(self.target)}
        for part in sorted(parts, key=len, reverse=True):
            if len(part) >= _TOKEN:
                text = text.replace(part, "…")
        return text


def networks(values: object, *, field: str) -> tuple[Network, ...]:
    """Return networks from texts such as "10.0.0.0/8" or "10.0.0.5".

    Raises:
        UsageError: one of them is not a network.
    """
    found: list[Network] = []
    for value in several(values, field=field):
        try:
            found.append(ip_network(str(value)))
        except ValueError as error:
            raise UsageError(f"{field} has {shown(value)}: {error}; write a network such as 10.0.0.0/8") from None
    return tuple(found)


def receiver_of(url: object, opened: Sequence[Network], *, field: str) -> Receiver:
    """Return the parts of a URL to which a webhook may send. `opened`: the networks that its declaration opens.

    Raises:
        UsageError: it is not a URL, has a form that programs read in different ways, or leads to an address that is
            not allowed. A name is resolved at each attempt, not here.
    """
    value = shown(url)
    if not isinstance(url, str) or len(url) > _LONGEST or "#" in url or "\\" in url:
        raise UsageError(f"{field} = {value} is not a URL for a webhook; write https://example.com/path")
    match = _URL.fullmatch(url)
    if match is None:
        raise UsageError(
            f"{field} = {value} is not a URL for a webhook; write https://example.com/path, without a user, a "
            "fragment or characters beyond ASCII"
        )
    scheme, host = match["scheme"].lower(), match["host"].lower()
    port = int(match["port"] or (443 if scheme == "https" else 80))
    if not 0 < port < 65_536:
        raise UsageError(f"{field} = {value} has port {port}; a port is 1 to 65535")
    if scheme == "http" and not opened:
        raise UsageError(f"{field} = {value} is not encrypted; use https, or allow_networks for a receiver inside")
    _check_host(host, scheme, opened, field=field, value=value)
    target = match["target"]
    name = host if match["port"] is None else f"{host}:{port}"
    return Receiver(scheme, host.strip("[]"), port, target if target.startswith("/") else f"/{target}", name)


def _check_host(host: str, scheme: str, opened: Sequence[Network], *, field: str, value: str) -> None:
    if host.startswith("["):
        literal = host.strip("[]")
    elif _NUMBER.fullmatch(host.rpartition(".")[2]):
        # Programs read 127.1, 0x7f000001, 0177.0.0.1 and 2130706433 as addresses.
        literal = host
    elif len(host) > 253 or any(len(label) > 63 or label.startswith("-") for label in host.split(".")):
        raise UsageError(f"{field} = {value} has a host name that DNS does not allow")
    else:
        return
    try:
        address = ip_address(literal)
    except ValueError:
        raise UsageError(
            f"{field} = {value} has a host that is not an address; write it as 192.0.2.1 or [2001:db8::1]"
        ) from None
    why = refusal(address, scheme, opened)
    if why is not None:
        raise UsageError(f"{field} = {value}: {why}")


def refusal(address: Address, scheme: str, opened: Iterable[Network]) -> str | None:
    """Return why a webhook may not connect to this address; None if it may."""
    plain = _plain(address)
    if any(plain in network for network in opened):
        return None
    if scheme != "https":
        return f"{address} is not in allow_networks, and http is allowed to these only; use https"
    if not _is_public(plain):
        return f"{address} is not a public address; a receiver inside needs allow_networks"
    return None


def first_refusal(addresses: Iterable[Address], scheme: str, opened: Sequence[Network]) -> str | None:
    """Return why a webhook may not connect to one of these addresses; None if it may connect to all of them.

    One refused address among public ones is enough: the next attempt could connect to it.
    """
    return next((why for address in addresses if (why := refusal(address, scheme, opened)) is not None), None)


def _plain(address: Address) -> Address:
    """Return the IPv4 address to which the system connects for a mapped one; others as they are."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _is_public(address: Address) -> bool:
    """Return True for an address of the public Internet, False for the own network and for special addresses."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC_4)
    if address in _NAT64:
        # A translator sends this to the IPv4 address in the last 32 bits.
        return _is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    return address in _PUBLIC_6 and address.is_global and not any(address in network for network in _NOT_PUBLIC_6)
