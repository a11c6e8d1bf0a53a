"""Health as an ASGI app: what it shows, who may read it, and its verdict. The time is virtual, the storage real."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tenure import Retry, State, Tenure, Timing, UsageError
from tenure.clock import SystemClock
from tenure.core.figures import FiguresQuery
from tenure.core.job import Owner
from tenure.errors import StorageUnavailableError
from tenure.health.asgi import MOST_FIELDS, UNREADY_AFTER, DegradedIs, HealthApp
from tenure.health.assessment import LONGEST_REST
from tenure.health.auth import TokenAuth
from tenure.health.build import health_app
from tenure.health.monitor import EVERY, LIMIT
from tenure.health.process_health import ProcessHealth, blocked
from tenure.ops.views import info_view
from tenure.storage.memory.storage import MemoryStorage
from tenure.storage.protocol import RenewRequest, Survey, WorkerInfo
from tenure.worker.loop import POLL
from tests.exposition import Family, read
from tests.flow.conftest import Harness, RunScenario

TOKEN = "s3cret"
BEARER = {"authorization": f"Bearer {TOKEN}"}
COUNTS = ("waiting", "active", "delayed", "failed", "completed")


@dataclass(frozen=True)
class Response:
    """A response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


async def ask(
    app: HealthApp,
    path: str = "/health/queues",
    *,
    method: str = "GET",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    **scope: Any,
) -> Response:
    """Call an ASGI app as a server does."""
    where, _, query = path.partition("?")
    sent: list[Any] = []
    given = list(headers.items()) if isinstance(headers, dict) else headers or []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(
        {
            "type": "http",
            "method": method,
            "path": where,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given],
            **scope,
        },
        receive,
        send,
    )
    start, *bodies = sent
    return Response(
        start["status"],
        [(name.decode(), value.decode()) for name, value in start["headers"]],
        b"".join(message["body"] for message in bodies),
    )


def mail_and_more(app: Tenure) -> Tenure:
    """Give an app tasks on two queues."""

    @app.task(name="add")
    async def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="send", queue="mail")
    async def send() -> None: ...

    return app


async def beat(harness: Harness, owner: str = "one", *, turned_ago: float = 0.0, **info: Any) -> None:
    """Renew as a worker does."""
    reported = WorkerInfo(queues=("default", "mail"), concurrency=10, turned_ago=round(turned_ago * 1e6), **info)
    await harness.storage.renew(RenewRequest(Owner(owner, f"name of {owner}", "host", 7), worker=reported))


# ── what it shows ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.statement(44)
def test_it_shows_every_defined_queue_with_its_counts_the_empty_ones_too(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        await app.find_task("add").options(delay="1h").enqueue(1, 2)
        await app.find_task("add").options(queue="elsewhere").enqueue(1, 2)
        seen = await ask(app.health(token=TOKEN), headers=BEARER)

        assert seen.status == 200
        assert seen.header("content-type") == ["application/json"]
        assert {name: [queue[count] for count in COUNTS] for name, queue in seen.json["queues"].items()} == {
            "default": [0, 0, 1, 0, 0],
            "elsewhere": [1, 0, 0, 0, 0],
            "mail": [0, 0, 0, 0, 0],
        }

    run_scenario(scenario)


@pytest.mark.statement(44)
def test_the_critical_queues_alone_are_shown_and_assessed(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        await app.find_task("add").enqueue(1, 2)
        health = app.health(token=TOKEN)

        async def asked(query: str) -> tuple[str, list[str]]:
            seen = (await ask(health, f"/health/queues?{query}", headers=BEARER)).json
            return seen["status"], list(seen["queues"])

        assert await asked("") == ("degraded", ["default", "mail"])
        assert await asked("queue=mail") == ("ok", ["mail"])
        assert await asked("queue=mail&queue=unheard%20of") == ("degraded", ["mail", "unheard of"])
        assert await asked("queue=mail,default") == ("degraded", ["default", "mail"])

    run_scenario(scenario)


@pytest.mark.parametrize("query", ["queue=", "queue=a,", "queue=%00", "&".join(["queue=a"] * (MOST_FIELDS + 1))])
async def test_a_query_that_names_no_queue_is_refused(query: str) -> None:
    seen = await ask(Tenure("memory://").health(unprotected=True), f"/health/queues?{query}")

    assert seen.status == 400
    assert seen.json.keys() == {"error"}


@pytest.mark.statement(44)
def test_head_has_the_same_answer_without_a_body(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        health = harness.app().health(token=TOKEN, degraded_is=503)
        for path in ("/health/queues", "/live", "/ready", "/elsewhere"):
            for headers in (BEARER, {}):
                got = await ask(health, path, headers=headers)
                head = await ask(health, path, method="HEAD", headers=headers)

                assert (head.status, head.headers) == (got.status, got.headers)
                assert got.header("content-length") == [str(len(got.body))]
                assert head.body == b""

    run_scenario(scenario)


@pytest.mark.statement(47)
def test_a_worker_is_shown_alive_and_stale_when_its_beats_stop(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        worker = app.worker(name="mine", concurrency=3, reaper=False)
        node = await harness.start(worker)
        health = app.health(token=TOKEN)

        async def record() -> dict[str, Any]:
            (found,) = (await ask(health, headers=BEARER)).json["workers"]
            return dict(found)

        async def beaten() -> bool:
            return bool((await harness.storage.survey()).workers)

        await harness.until(beaten)
        await asyncio.sleep(20)
        alive = await record()

        assert alive.keys() == {
            *("id", "name", "host", "pid", "queues", "concurrency", "active", "started"),
            *("state", "died", "age", "seen_ago", "turned_ago"),
        }
        assert (alive["id"], alive["name"], alive["concurrency"]) == (worker.owner.id, "mine", 3)
        assert alive["queues"] == ["default", "mail"]
        assert alive["state"] == "alive"
        assert 0 <= alive["age"] == max(alive["seen_ago"], alive["turned_ago"]) <= 10

        harness.loop.kill(node)

        async def stale() -> bool:
            return bool((await record())["state"] == "stale")

        # The keeper has ended with the worker, as after a SIGKILL.
        assert await harness.until(stale) <= 15.1
        assert 14.9 < (await record())["age"] < 20.1

    run_scenario(scenario)


@pytest.mark.statement(49)
def test_a_worker_that_beats_while_its_claim_loop_hangs_is_stale(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        health = harness.app().health(token=TOKEN)
        states: list[str] = []
        for turned_ago in (0, 14.9, 15.1, 3600):
            await beat(harness, turned_ago=turned_ago)
            (worker,) = (await ask(health, headers=BEARER)).json["workers"]
            states.append(worker["state"])

            assert worker["seen_ago"] == 0
            assert worker["age"] == worker["turned_ago"] == turned_ago

        assert states == ["alive", "alive", "stale", "stale"]

    run_scenario(scenario)


@pytest.mark.statement(47, 49)
@pytest.mark.parametrize("timing", [Timing(lease="2s", sweep="500ms", grace="500ms"), Timing.fast()])
def test_an_idle_worker_with_a_short_beat_is_never_stale(run_scenario: RunScenario, timing: Timing) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app(timing=timing))
        worker = app.worker()
        node = await harness.start(worker)
        await asyncio.sleep(1)
        health = app.health(token=TOKEN)
        states: set[str] = set()
        for _ in range(200):
            states |= {item["state"] for item in (await ask(health, headers=BEARER)).json["workers"]}
            # `tenure info --check` uses the same rule.
            info = info_view(await harness.storage.survey(), url="", timing=timing)
            states |= {*info.complaints, *("stale" for worker in info.workers if worker.stale)}
            await asyncio.sleep(0.1)
        await harness.stop(node, worker)

        assert states == {"alive"}

    assert LONGEST_REST == POLL
    run_scenario(scenario)


def test_the_age_of_the_reaper_is_that_of_the_last_sweep(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        health = app.health(token=TOKEN)

        assert (await ask(health, headers=BEARER)).json["reaper"] == {"age": None, "late": False}

        worker = app.worker()
        node = await harness.start(worker)
        await asyncio.sleep(1)
        await harness.stop(node, worker)
        before = (await ask(health, headers=BEARER)).json["reaper"]["age"]
        await asyncio.sleep(100)
        reaper = (await ask(health, headers=BEARER)).json["reaper"]

        assert before < 2.1
        assert abs(reaper["age"] - before - 100) < 0.1
        assert not reaper["late"]

    run_scenario(scenario)


# ── the verdict ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.statement(48)
@pytest.mark.parametrize("status", [200, 503])
def test_waiting_jobs_without_a_worker_are_degraded_with_the_chosen_status(
    run_scenario: RunScenario, status: DegradedIs
) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        health = app.health(token=TOKEN, degraded_is=status)
        await app.find_task("add").enqueue(1, 2)
        unserved = await ask(health, headers=BEARER)
        await beat(harness)
        served = await ask(health, headers=BEARER)
        await asyncio.sleep(15.1)
        dead = await ask(health, headers=BEARER)

        assert (unserved.status, unserved.json["status"]) == (status, "degraded")
        assert unserved.json["queues"]["default"]["status"] == "degraded"
        assert unserved.json["queues"]["mail"]["status"] == "ok"
        assert unserved.json["complaints"] == ["queue 'default': 1 job waits and no live worker serves it"]
        assert (served.status, served.json["status"]) == (200, "ok")
        assert (dead.status, dead.json["status"]) == (status, "degraded")

    run_scenario(scenario)


@pytest.mark.statement(48)
def test_a_stopping_worker_serves_no_queue_any_more(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        await app.find_task("add").enqueue(1, 2)
        await beat(harness, stopping=True)
        seen = (await ask(app.health(token=TOKEN), headers=BEARER)).json

        assert seen["workers"][0]["state"] == "stopping"
        assert seen["status"] == "degraded"

    run_scenario(scenario)


@pytest.mark.statement(48)
def test_a_quiet_worker_does_not_serve_a_queue_and_the_remedy_is_named(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        await app.find_task("add").enqueue(1, 2)
        await beat(harness, quiet=True)
        seen = (await ask(app.health(token=TOKEN), headers=BEARER)).json

        assert seen["workers"][0]["state"] == "quiet"
        assert seen["status"] == "degraded"
        assert seen["complaints"] == [
            "queue 'default': 1 job waits and no live worker serves it; "
            "1 quiet workers could: tenure workers quiet --undo"
        ]

    run_scenario(scenario)


@pytest.mark.statement(48)
def test_jobs_that_wait_in_a_paused_queue_are_healthy(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        await app.find_task("add").enqueue(1, 2)
        await app.queue("default").pause()

        assert (await ask(app.health(token=TOKEN), headers=BEARER)).json["status"] == "ok"

    run_scenario(scenario)


@pytest.mark.statement(50)
def test_a_lasting_backlog_is_unhealthy_until_it_has_recovered(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        health = app.health(token=TOKEN, backlog={"*": 100, "mail": 1}, for_="1m")
        await beat(harness)
        jobs = [await app.find_task("send").enqueue() for _ in range(2)]
        seen: list[tuple[int, str]] = []

        async def look() -> None:
            await beat(harness)
            found = await ask(health, headers=BEARER)
            seen.append((found.status, found.json["status"]))

        await look()
        await asyncio.sleep(60)
        await look()
        await asyncio.sleep(1)
        await look()
        critical = (await ask(health, "/health/queues?queue=mail", headers=BEARER)).json
        await jobs[0].cancel()
        await look()
        await app.find_task("send").enqueue()
        await look()

        assert seen == [(200, "ok"), (200, "ok"), (500, "unhealthy"), (200, "ok"), (200, "ok")]
        assert critical["queues"]["mail"]["threshold"] == 1
        assert 60.9 < critical["queues"]["mail"]["above_for"] < 61.1
        assert (await ask(health, "/health/queues?queue=default", headers=BEARER)).status == 200

    run_scenario(scenario)


@pytest.mark.statement(50)
def test_the_server_notices_a_recovery_between_two_requests(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        health = app.health(token=TOKEN, backlog=0, for_="1m")
        async with Lifespan(health):
            await beat(harness)
            job = await app.find_task("add").enqueue(1, 2)
            await ask(health, headers=BEARER)
            await asyncio.sleep(40)
            await job.cancel()
            await asyncio.sleep(2 * EVERY)
            await app.find_task("add").enqueue(1, 2)
            await asyncio.sleep(40)
            await beat(harness)
            spiky = await ask(health, headers=BEARER)
            await asyncio.sleep(30)
            lasting = await ask(health, headers=BEARER)

        assert spiky.status == 200
        assert lasting.status == 500

    run_scenario(scenario)


# ── when the storage is unavailable ───────────────────────────────────────────────────────────────────────────────────


class UnreliableMemory(MemoryStorage):
    """A third party's storage that can be made to fail, or to give no answer."""

    trouble: Literal["none", "fails", "hangs"] = "none"
    asked = 0

    async def survey(self, queues: Any = (), *, faults: int = 0, figures: FiguresQuery | None = None) -> Survey:
        self.asked += 1
        if self.trouble == "fails":
            raise StorageUnavailableError("gone fishing")
        if self.trouble == "hangs":
            await asyncio.Event().wait()
        return await super().survey(queues, faults=faults, figures=figures)


def unreliable(harness: Harness) -> UnreliableMemory:
    return UnreliableMemory(clock=harness.clock)


@pytest.mark.statement(45)
@pytest.mark.parametrize("trouble", ["fails", "hangs"])
def test_an_unreachable_storage_is_a_503_with_the_reason_within_2_s(
    run_scenario: RunScenario, trouble: Literal["fails", "hangs"]
) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        health = harness.app(storage=storage).health(token=TOKEN)
        storage.trouble = trouble
        began = harness.now
        seen = await ask(health, headers=BEARER)
        took = harness.now - began
        storage.trouble = "none"

        assert took < 2.0
        assert seen.status == 503
        assert seen.json["status"] == "unreachable"
        assert seen.json.keys() == (await ask(health, headers=BEARER)).json.keys()
        assert seen.json["complaints"] == [
            "the storage is unreachable: " + ("gone fishing" if trouble == "fails" else f"no answer within {LIMIT:g} s")
        ]
        assert (await ask(health, headers=BEARER)).status == 200

    run_scenario(scenario)


def test_many_requests_at_once_make_one_storage_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        health = harness.app(storage=storage).health(token=TOKEN)
        storage.trouble = "hangs"
        async with asyncio.TaskGroup() as crowd:
            asked = [crowd.create_task(ask(health, headers=BEARER)) for _ in range(50)]

        assert {item.result().status for item in asked} == {503}
        assert storage.asked == 1

    run_scenario(scenario)


def test_a_client_that_disconnects_does_not_affect_other_requests(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        health = harness.app(storage=storage).health(token=TOKEN)
        storage.trouble = "hangs"
        impatient = asyncio.ensure_future(ask(health, headers=BEARER))
        patient = asyncio.ensure_future(ask(health, headers=BEARER))
        await asyncio.sleep(0.5)
        impatient.cancel()

        assert (await patient).status == 503
        assert impatient.cancelled()

    run_scenario(scenario)


@pytest.mark.statement(51)
@pytest.mark.parametrize("trouble", ["fails", "hangs"])
def test_liveness_does_not_depend_on_the_storage_and_readiness_does(
    run_scenario: RunScenario, trouble: Literal["fails", "hangs"]
) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        health = harness.app(storage=storage).health(token=TOKEN)

        async def words() -> list[tuple[int, bytes]]:
            return [(seen.status, seen.body) for seen in (await ask(health, "/live"), await ask(health, "/ready"))]

        well = await words()
        storage.trouble = trouble
        began = harness.now
        await asyncio.sleep(2)
        hiccup = await words()
        while (await words())[1] == (200, b"yes"):  # noqa: ASYNC110 - in virtual time
            await asyncio.sleep(0.1)
        took = harness.now - began
        ill = await words()
        storage.trouble = "none"
        await asyncio.sleep(2)

        assert well == hiccup == await words() == [(200, b"yes"), (200, b"yes")]
        assert ill == [(200, b"yes"), (503, b"no")]
        assert UNREADY_AFTER < took < UNREADY_AFTER + 2 + 2 * LIMIT

    run_scenario(scenario)


@pytest.mark.statement(51)
def test_a_process_that_has_never_seen_its_storage_is_not_ready(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        storage.trouble = "fails"

        assert (await ask(harness.app(storage=storage).health(token=TOKEN), "/ready")).status == 503

    run_scenario(scenario)


@pytest.mark.statement(49, 51)
def test_a_worker_is_ready_while_its_claim_loop_turns_and_it_does_not_stop(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        stopping: list[bool] = []

        async def opened() -> Any:
            return harness.storage

        health = health_app(
            opened,
            timing=Timing,
            clock=harness.clock,
            unprotected=True,
            process_health=lambda: ProcessHealth(owners=("unknown", "one"), stopping=bool(stopping)),
        )
        words: list[str] = []

        async def look() -> None:
            await asyncio.sleep(1.1)
            words.append((await ask(health, "/ready")).body.decode())

        await look()
        await beat(harness, "another")
        await look()
        await beat(harness)
        await look()
        await beat(harness, turned_ago=15)
        await look()
        await beat(harness)
        await look()
        await beat(harness, stopping=True)
        await look()
        await beat(harness)
        await look()
        await beat(harness, quiet=True)
        await look()
        await beat(harness)
        await look()
        stopping.append(True)
        await look()

        assert words == ["no", "no", "yes", "no", "yes", "no", "yes", "no", "yes", "no"]

    run_scenario(scenario)


def test_many_readiness_probes_make_one_storage_call(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        health = harness.app(storage=storage).health(token=TOKEN)
        for _ in range(100):
            await ask(health, "/ready")
            await ask(health, "/live")
            await ask(health)

        assert storage.asked == 1

    run_scenario(scenario)


# ── who may read it ───────────────────────────────────────────────────────────────────────────────────────────────────


def basic(password: str, *, user: str = "probe") -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.statement(46)
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer wrong")],
        [("authorization", f"Bearer {TOKEN[:-1]}")],
        [("authorization", f"Bearer {TOKEN}x")],
        [("authorization", TOKEN)],
        [("authorization", f"Token {TOKEN}")],
        [("authorization", basic("wrong"))],
        [("authorization", basic("", user=TOKEN))],
        [("authorization", f"Basic {TOKEN}")],
        [("authorization", "Basic ÿ")],
        [("authorization", f"Bearer {TOKEN}"), ("authorization", "Bearer wrong")],
        [("x-authorization", f"Bearer {TOKEN}")],
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
async def test_a_request_without_the_token_gets_401_without_a_storage_call(
    headers: list[tuple[str, str]], method: str
) -> None:
    storage = UnreliableMemory()
    app = mail_and_more(Tenure(storage=storage))
    seen = await ask(app.health(token=TOKEN), "/health/queues?queue=mail", method=method, headers=headers)

    assert seen.status == 401
    assert seen.body == (b"" if method == "HEAD" else b'{"error":"unauthorized"}')
    assert [value.split()[0] for value in seen.header("www-authenticate")] == ["Bearer", "Basic"]
    assert storage.asked == 0


@pytest.mark.statement(46)
@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer  {TOKEN} ", basic(TOKEN), basic(TOKEN, user="")])
async def test_a_request_with_the_token_as_bearer_or_password_is_answered(header: str) -> None:
    seen = await ask(Tenure("memory://").health(token=TOKEN), headers={"authorization": header})

    assert seen.status == 200


async def test_a_token_may_contain_a_colon() -> None:
    health = Tenure("memory://").health(token="a:b")

    assert (await ask(health, headers={"authorization": basic("a:b")})).status == 200


@pytest.mark.statement(46)
async def test_the_token_may_come_from_the_environment_or_be_waived_explicitly(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Tenure("memory://")
    monkeypatch.delenv("TENURE_HTTP_TOKEN", raising=False)
    with pytest.raises(UsageError, match="TENURE_HTTP_TOKEN"):
        app.health()
    unprotected = await ask(app.health(unprotected=True))
    monkeypatch.setenv("TENURE_HTTP_TOKEN", TOKEN)
    protected = app.health()

    assert unprotected.status == 200
    assert (await ask(protected)).status == 401
    assert (await ask(protected, headers=BEARER)).status == 200


@pytest.mark.parametrize(
    "options",
    [
        {"token": ""},
        {"token": "with space"},
        {"token": "ключ"},
        {"token": 5},
        {"token": "a", "unprotected": True},
        {"token": "a", "backlog": -1},
        {"token": "a", "backlog": True},
        {"token": "a", "backlog": {"mail": 1.5}},
        {"token": "a", "backlog": {"": 1}},
        {"token": "a", "backlog": 1, "for_": 0},
        {"token": "a", "degraded_is": 418},
        {"unprotected": "no"},
    ],
    ids=str,
)
def test_invalid_options_are_refused_without_showing_the_token(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refused:
        Tenure("memory://").health(**options)

    assert "with space" not in str(refused.value)


def test_without_a_token_every_request_is_admitted() -> None:
    assert TokenAuth(None).admits([])
    assert not TokenAuth(None).closed
    assert TokenAuth(TOKEN).closed


# ── mounted in another app ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("root_path", "path"), [("/ops", "/ops/live"), ("/ops/", "/ops/live"), ("/ops", "/live"), ("/", "/live")]
)
async def test_it_can_be_mounted_below_a_path_with_or_without_that_prefix(root_path: str, path: str) -> None:
    assert (await ask(Tenure("memory://").health(token=TOKEN), path, root_path=root_path)).body == b"yes"


@pytest.mark.parametrize("path", ["/", "", "/liveness", "/live/", "/health", "//live"])
async def test_an_unknown_path_is_404(path: str) -> None:
    assert (await ask(Tenure("memory://").health(token=TOKEN), path)).status == 404


@pytest.mark.parametrize("path", ["/live", "/ready", "/health/queues"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
async def test_other_methods_get_405_and_the_allowed_ones_named(path: str, method: str) -> None:
    seen = await ask(Tenure("memory://").health(token=TOKEN), path, method=method, headers=BEARER)

    assert seen.status == 405
    assert seen.header("allow") == ["GET, HEAD"]


def test_it_works_in_one_loop_after_another() -> None:
    async def main() -> int:
        return (await ask(health, headers=BEARER)).status

    health = Tenure("memory://").health(token=TOKEN)

    assert [asyncio.run(main()) for _ in range(3)] == [200, 200, 200]


async def test_it_closes_web_sockets_before_they_are_open() -> None:
    asked: list[Any] = [{"type": "websocket.connect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return asked.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await Tenure("memory://").health(token=TOKEN)({"type": "websocket", "path": "/live", "headers": []}, receive, send)

    assert asked == []
    assert sent == [{"type": "websocket.close", "code": 1000}]


def test_a_storage_that_can_never_open_is_unreachable_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        health = Tenure(f"sqlite:///{tmp_path / 'nowhere' / 'jobs.db'}").health(unprotected=True)
        answers = [await ask(health) for _ in range(3)]

        assert [answer.status for answer in answers] == [503] * 3
        assert "does not exist" in answers[0].json["complaints"][0]

    asyncio.run(scenario())

    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None)]


@pytest.mark.parametrize("known", ["default", "paused", "served", "silent"])
def test_a_known_queue_without_jobs_is_healthy_and_an_unknown_one_is_not(run_scenario: RunScenario, known: str) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        health = app.health(token=TOKEN)
        await app.queue("paused").pause()
        served = WorkerInfo(queues=("served",), concurrency=1)
        silent = WorkerInfo(queues=("silent",), concurrency=1, turned_ago=3_600_000_000)
        await harness.storage.renew(RenewRequest(Owner("one", "one", "host", 7), worker=served))
        await harness.storage.renew(RenewRequest(Owner("two", "two", "host", 8), worker=silent))
        well = (await ask(health, f"/health/queues?queue={known}", headers=BEARER)).json
        ill = (await ask(health, f"/health/queues?queue={known},deflaut", headers=BEARER)).json

        assert (well["status"], well["queues"][known]["known"]) == ("ok", True)
        assert (ill["status"], ill["queues"]["deflaut"]["known"]) == ("degraded", False)
        assert [item for item in ill["complaints"] if "deflaut" in item] == [
            "queue 'deflaut': unknown: it never had a job and no task uses it; check the spelling"
        ]

    run_scenario(scenario)


def test_the_counts_are_those_of_the_states() -> None:
    assert {*COUNTS} < {state.value for state in State}


class Lifespan:
    """Starts and stops an ASGI app as a server does."""

    def __init__(self, app: HealthApp) -> None:
        self._app = app
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._task: asyncio.Future[None] | None = None

    async def __aenter__(self) -> None:
        send: Callable[[Any], Awaitable[None]] = self._said.put
        self._task = asyncio.ensure_future(self._app({"type": "lifespan"}, self._asked.get, send))
        await self._asked.put({"type": "lifespan.startup"})
        assert await self._said.get() == {"type": "lifespan.startup.complete"}

    async def __aexit__(self, *_: object) -> None:
        await self._asked.put({"type": "lifespan.shutdown"})
        assert await self._said.get() == {"type": "lifespan.shutdown.complete"}
        assert self._task is not None
        await self._task


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_show_the_storage_and_the_finished_runs(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())

        @app.task(name="fail", retry=Retry(max_attempts=2, backoff="fixed", base="1s", jitter=False))
        async def fail() -> None:
            await asyncio.sleep(2)
            raise ValueError

        worker = app.worker(concurrency=7)
        node = await harness.start(worker)
        await app.find_task("add").enqueue(1, 2)
        await fail.enqueue()
        await asyncio.sleep(15)
        await app.find_task("add").options(delay="1h").enqueue(1, 2)
        seen = await ask(app.health(token=TOKEN), "/metrics", headers=BEARER)
        await harness.stop(node, worker)
        found = read(seen.body)

        assert seen.header("content-type") == ["text/plain; version=0.0.4; charset=utf-8"]
        assert found["tenure_queue_jobs"][{"queue": "default", "state": "delayed"}] == 1
        assert found["tenure_queue_jobs"][{"queue": "mail", "state": "waiting"}] == 0
        assert found["tenure_failed_jobs"][{"queue": "default"}] == 1
        assert found["tenure_queue_oldest_seconds"][{"queue": "default"}] == 0
        assert found["tenure_workers"][{"state": "alive"}] == 1
        assert [found["tenure_worker_slots"][{"state": state}] for state in ("busy", "free")] == [0, 7]
        assert found["tenure_leader"][{"scope": "*"}] == 1
        assert found["tenure_reaper_age_seconds"][{}] <= 2
        assert found["tenure_storage_up"][{}] == 1
        jobs = {tuple(dict(labels)[name] for name in ("queue", "task", "outcome")) for _, labels in jobs_of(found)}
        assert jobs == {
            ("default", "add", "completed"),
            ("default", "fail", "retried"),
            ("default", "fail", "failed"),
        }
        durations = found["tenure_job_duration_seconds"]
        assert durations.total("tenure_job_duration_seconds_count", task="fail") == 2
        assert durations.total("tenure_job_duration_seconds_sum", task="fail") == pytest.approx(4, abs=0.1)
        # The second run waited for its delay; it was not due during that time.
        assert found["tenure_job_wait_seconds"].total("tenure_job_wait_seconds_sum") < 1
        assert found["tenure_storage_op_seconds"].total("tenure_storage_op_seconds_count", op="exchange") > 0

    run_scenario(scenario)


def jobs_of(found: dict[str, Family]) -> list[tuple[str, frozenset[tuple[str, str]]]]:
    return list(found["tenure_jobs_total"].samples)


def test_metrics_require_the_token_and_need_no_worker(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        app = mail_and_more(harness.app())
        await app.find_task("add").enqueue(1, 2)
        await asyncio.sleep(30)
        health = app.health(token=TOKEN)
        found = read((await ask(health, "/metrics", headers=BEARER)).body)

        assert (await ask(health, "/metrics")).status == 401
        assert found["tenure_queue_jobs"][{"queue": "default", "state": "waiting"}] == 1
        assert found["tenure_queue_oldest_seconds"][{"queue": "default"}] == 30
        assert [found["tenure_worker_slots"][{"state": state}] for state in ("busy", "free")] == [0, 0]
        assert found["tenure_leader"][{"scope": "*"}] == 0
        # No sweep has ever run: an alert on the age must detect that, too.
        assert found["tenure_reaper_age_seconds"][{}] == float("inf")

    run_scenario(scenario)


def test_metrics_of_an_unreachable_storage_show_local_counters(run_scenario: RunScenario) -> None:
    async def scenario(harness: Harness) -> None:
        storage = unreliable(harness)
        storage.trouble = "fails"
        seen = await ask(harness.app(storage=storage).health(token=TOKEN), "/metrics", headers=BEARER)
        found = read(seen.body)

        assert seen.status == 200
        assert found["tenure_storage_up"][{}] == 0
        assert "tenure_queue_jobs" not in found
        assert found["tenure_jobs_total"].samples == {}

    run_scenario(scenario)


async def test_liveness_fails_once_the_loop_is_blocked_for_too_long() -> None:
    messages: list[str] = []

    async def opened() -> Any:
        raise StorageUnavailableError("gone")

    health = health_app(
        opened,
        timing=Timing,
        clock=SystemClock(),
        unprotected=True,
        process_health=lambda: ProcessHealth(dead="".join(messages)),
    )
    before = await ask(health, "/live")
    messages.append(blocked(601.25, 600))
    after = await ask(health, "/live")

    assert blocked(600, 600) == ""
    assert (before.status, before.body) == (200, b"yes")
    assert (after.status, after.body) == (
        503,
        b"no: its event loop has been blocked for 601.2 s, more than 600 s",
    )
