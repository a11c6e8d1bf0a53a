"""Which URLs and addresses a webhook may send to."""

from ipaddress import ip_address

import pytest

from tenure.errors import UsageError
from tenure.webhooks.addresses import first_refusal, networks, receiver_of, refusal

HOSTILE_URLS = [
    # another scheme, or none
    "http://example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "//example.com/",
    "example.com/hook",
    "javascript:alert(1)",
    # this machine and the own network
    "https://127.0.0.1/",
    "https://127.8.9.10:6379/",
    "https://0.0.0.0/",
    "https://10.0.0.5/",
    "https://172.16.0.1/",
    "https://192.168.1.1/",
    "https://100.64.0.1/",
    "https://[::1]/",
    "https://[::]/",
    "https://[fe80::1]/",
    "https://[fd00::1]/",
    # metadata of clouds
    "https://169.254.169.254/latest/meta-data/",
    "https://[fd00:ec2::254]/latest/",
    "https://100.100.100.200/",
    "https://192.0.0.192/",
    "https://168.63.129.16/",
    # an IPv4 address inside of an IPv6 address
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:a9fe:a9fe]/",
    "https://[::127.0.0.1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b::169.254.169.254]/",
    "https://[64:ff9b:1::a00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::]/",
    # addresses that some programs read from other forms
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.0.0.1/",
    "https://0177.0.0.1/",
    "https://127.1/",
    "https://127.0.0.1./",
    "https://1.2.3.4.5/",
    "https://256.1.1.1/",
    "https://[fe80::1%25eth0]/",
    # a host that is not the one at first sight
    "https://example.com@127.0.0.1/",
    "https://example.com:443@127.0.0.1/",
    "https://user:password@example.com/",
    "https://127.0.0.1#@example.com/",
    "https://127.0.0.1\\@example.com/",
    "https://example.com\\.internal/",
    "https://example.com%2f@127.0.0.1/",
    "https://exam\tple.com/",
    "https://example.com\r\nhost: internal/",
    "https://example.com/ HTTP/1.1\r\nx: y",
    " https://example.com/",
    # names beyond ASCII, which programs map to others
    "https://127。0。0。1/",
    "https://①②⑦.0.0.1/",
    "https://ⓔxample.com/",
    "https://bücher.example/",
    # ports, and names that DNS does not allow
    "https://example.com:0/",
    "https://example.com:65536/",
    "https://example.com:80a/",
    "https://example.com:-1/",
    "https:///path",
    "https://-example.com/",
    "https://example..com/",
    f"https://{'a' * 64}.com/",
    f"https://example.com/{'a' * 2_000}",
]

HOSTILE_ADDRESSES = [
    *("0.0.0.0", "0.1.2.3", "10.255.255.255", "100.127.255.255", "127.0.0.1", "127.255.255.254", "168.63.129.16"),
    *("169.254.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.255.255", "198.18.0.1"),
    *("198.19.255.255", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::7f00:1", "::ffff:10.0.0.1", "::ffff:224.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::10.0.0.1"),
    *("64:ff9b::224.0.0.1", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1", "2002:a00:1::", "3fff::1"),
    *("5f00::1", "fc00::1", "fdff::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1"),
]

PUBLIC_ADDRESSES = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "172.15.255.255"),
    *("172.32.0.0", "168.63.129.17", "223.255.255.255", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
    *("2606:4700:4700::1111", "2a00:1450:4001::200e"),
]


@pytest.mark.parametrize("url", HOSTILE_URLS)
def test_a_hostile_url_is_refused_where_it_is_declared(url: str) -> None:
    with pytest.raises(UsageError, match=r"^Webhook\.url = "):
        receiver_of(url, (), field="Webhook.url")


@pytest.mark.parametrize("address", HOSTILE_ADDRESSES)
def test_an_address_that_is_not_public_is_refused(address: str) -> None:
    assert refusal(ip_address(address), "https", ()) is not None


@pytest.mark.parametrize("address", PUBLIC_ADDRESSES)
def test_a_public_address_is_allowed_by_https_only(address: str) -> None:
    assert refusal(ip_address(address), "https", ()) is None
    assert refusal(ip_address(address), "http", networks(["10.0.0.0/8"], field="x")) is not None


def test_one_refused_address_among_public_ones_refuses_all() -> None:
    found = [ip_address(text) for text in ("8.8.8.8", "2606:4700::1", "10.0.0.1", "1.1.1.1")]

    assert first_refusal(found, "https", ()) == (
        "10.0.0.1 is not a public address; a receiver inside needs allow_networks"
    )
    assert first_refusal([found[0], found[3]], "https", ()) is None


def test_networks_open_their_own_addresses_only_also_mapped_ones() -> None:
    opened = networks(["10.1.0.0/16", "fd00:7::/32"], field="allow_networks")

    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:7::1"):
        assert refusal(ip_address(address), "http", opened) is None
    for address in ("10.2.0.1", "127.0.0.1", "fd00:8::1", "64:ff9b::10.1.2.3"):
        assert refusal(ip_address(address), "https", opened) is not None


@pytest.mark.parametrize("value", ["10.0.0.1/8", "ten", "", None, "10.0.0.0/33"])
def test_an_invalid_network_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="write a network such as"):
        networks([value], field="allow_networks")


@pytest.mark.parametrize(
    ("url", "host", "port", "target", "name"),
    [
        ("https://example.com", "example.com", 443, "/", "example.com"),
        ("https://Example.COM/Hook?a=1&b=%20", "example.com", 443, "/Hook?a=1&b=%20", "example.com"),
        ("https://example.com:8443?x", "example.com", 8443, "/?x", "example.com:8443"),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443, "/", "xn--bcher-kva.example"),
        ("https://8.8.8.8/x", "8.8.8.8", 443, "/x", "8.8.8.8"),
        ("https://[2606:4700::1]:444/", "2606:4700::1", 444, "/", "[2606:4700::1]:444"),
    ],
)
def test_a_url_has_these_parts(url: str, host: str, port: int, target: str, name: str) -> None:
    receiver = receiver_of(url, (), field="url")

    assert (receiver.host, receiver.port, receiver.target, receiver.name) == (host, port, target, name)
    assert receiver.secure


def test_http_needs_networks_and_uses_its_own_port() -> None:
    receiver = receiver_of("http://10.1.2.3/x", networks(["10.1.0.0/16"], field="x"), field="url")

    assert (receiver.port, receiver.secure) == (80, False)
