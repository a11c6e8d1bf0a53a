"""The files of the pages: how they are served, what they may not contain, and how much they weigh."""

import gzip
import hashlib
import re
import tomllib
from pathlib import Path

import pytest

import tenure.console
from tenure import Tenure
from tenure.console import Console
from tenure.console.pages import POLICY, static_files
from tests.console.site import Reply, call

STATIC = Path(tenure.console.__file__).parent / "static"
VENDOR = STATIC / "vendor"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
OURS = [path for path in FILES if path.suffix in (".js", ".css", ".html", ".svg") and path.parent != VENDOR]

MOST = 60_000
"""Bytes that a browser receives in all, packed."""


async def page(path: str, *headers: tuple[str, str], method: str = "GET", root: str = "") -> Reply:
    """Ask as a stranger: the files hold no data, so they need no credentials."""
    console = Console(Tenure("memory://"))
    return await call(console, path, headers=headers, client=("203.0.113.9", 1), method=method, root_path=root)


def addresses(reply: Reply) -> list[str]:
    return re.findall(r'(?:href|src)="([^"]+)"', reply.body.decode())


@pytest.mark.parametrize("path", ["/", "/jobs", "/job?queue=a&id=b", "/no/such/page", "/apiary", "/static"])
async def test_each_path_outside_the_api_answers_with_the_page(path: str) -> None:
    reply = await page(path)

    assert (reply.status, reply.header("content-type")) == (200, "text/html; charset=utf-8")
    assert b'<div id="app">' in reply.body
    assert len(reply.body) <= 4_000
    depth = path.partition("?")[0].count("/") - 1
    assert all(re.fullmatch(rf"(\.\./){{{depth}}}static/[0-9a-f]{{16}}/[\w./-]+", to) for to in addresses(reply))


async def test_the_policy_allows_nothing_inline_and_nothing_remote() -> None:
    for path in ("/", addresses(await page("/"))[0]):
        reply = await page(f"/{path.removeprefix('/')}")

        assert reply.header("content-security-policy") == POLICY
        assert reply.header("x-content-type-options") == "nosniff"
        assert reply.header("referrer-policy") == "no-referrer"
    assert "unsafe" not in POLICY
    assert ":" not in POLICY


async def test_each_file_that_the_page_names_is_served_and_kept() -> None:
    named = addresses(await page("/"))
    for to in named:
        reply = await page(f"/{to}")

        assert reply.status == 200, to
        assert "immutable" in str(reply.header("cache-control"))
    assert {to.split("/", 2)[2] for to in named if to.endswith(".js")} == {
        str(path.relative_to(STATIC)) for path in SCRIPTS
    }


async def test_an_unchanged_file_is_not_sent_again() -> None:
    for path in ("/", f"/{addresses(await page('/'))[0]}"):
        first = await page(path)
        again = await page(path, ("If-None-Match", f'"other", {first.header("etag")}'))

        assert (again.status, again.body) == (304, b"")
        assert again.header("etag") == first.header("etag")


@pytest.mark.parametrize(
    ("accepted", "packed"), [("gzip", True), ("br, gzip;q=0.5", True), ("gzip;q=0", False), ("identity", False)]
)
async def test_a_client_that_reads_gzip_gets_it(accepted: str, packed: bool) -> None:
    plain, reply = await page("/"), await page("/", ("Accept-Encoding", accepted))

    assert (reply.header("content-encoding") == "gzip") is packed
    assert (gzip.decompress(reply.body) if packed else reply.body) == plain.body


async def test_a_file_of_another_version_is_checked_each_time() -> None:
    reply = await page("/static/0123456789abcdef/main.js")

    assert (reply.status, reply.header("cache-control")) == (200, "no-cache")


@pytest.mark.parametrize("name", ["nothing.js", "../pages.py", "%2e%2e/pages.py", "vendor", "index.html"])
async def test_other_files_are_not_served(name: str) -> None:
    assert (await page(f"/static/x/{name}")).status == 404


async def test_head_has_no_body_and_other_methods_are_not_for_pages() -> None:
    head = await page("/", method="HEAD")

    assert (head.status, head.body) == (200, b"")
    assert int(str(head.header("content-length"))) > 0
    assert (await page("/", method="POST")).problem == "unknown-route"


@pytest.mark.parametrize(("root", "path"), [("/a/b", "/a/b"), ("/a/b", ""), ("/b", "/b")])
async def test_the_mount_point_without_a_slash_leads_to_the_one_with_it(root: str, path: str) -> None:
    reply = await page(f"{path}?x=1", root=root)

    assert (reply.status, reply.header("location")) == (307, "./b/?x=1")


def test_all_files_together_are_small() -> None:
    sent = [file.packed for name, file in static_files()[1].items() if name.endswith((".js", ".css", ".svg"))]

    assert sum(map(len, [*sent, gzip.compress((STATIC / "index.html").read_bytes())])) <= MOST


def test_files_are_sent_without_comments_and_keep_their_lines() -> None:
    sent = static_files()[1]
    for path in OURS:
        if path.suffix not in (".js", ".css"):
            continue
        pairs = list(
            zip(
                path.read_text().split("\n"),
                sent[path.relative_to(STATIC).as_posix()].body.decode().split("\n"),
                strict=True,
            )
        )
        assert all(left in ("", line.lstrip(" ")) for line, left in pairs), path
        gone = [line.strip() for line, left in pairs if line.strip() and not left]
        assert all(line.startswith(("//", "/*", "*")) for line in gone), path
    assert sent["vendor/preact.js"].body == (VENDOR / "preact.js").read_bytes()


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.name)
def test_no_file_is_inline_or_remote(path: Path) -> None:
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")

    assert not re.search(r"https?:|url\(|@import|\bimport\(|innerHTML|\beval\b|new Function", text), path
    if path.suffix == ".html":
        assert not re.search(r"<style|\son\w+=|style=|<script(?![^>]* src=)", text)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_modules_import_by_relative_paths_that_exist(path: Path) -> None:
    for to in re.findall(r'(?:\bfrom|\bimport) ?"([^"]+)"', path.read_text()):
        assert to.startswith(("./", "../")), to
        assert (path.parent / to).is_file(), to


def test_each_vendored_module_is_the_one_written_down() -> None:
    modules = tomllib.loads((VENDOR / "VENDORED.toml").read_text())["module"]

    assert {module["file"] for module in modules} == {path.name for path in VENDOR.glob("*.js")}
    for module in modules:
        assert hashlib.sha256((VENDOR / module["file"]).read_bytes()).hexdigest() == module["sha256"]
        assert (VENDOR / module["licence_text"]).is_file()
