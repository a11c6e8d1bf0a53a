"""An app with a webhook, as a process of its own loads it. The environment names the storage and the receiver."""

import os

from tenure import JobFailed, Reject, Retry, Tenure, Timing, Webhook

FAST = Timing(lease="2s", beat="500ms", sweep="100ms", grace="200ms", leader_ttl="400ms")


def make_app(storage: str, url: str) -> Tenure:
    app = Tenure(
        storage,
        timing=FAST,
        webhooks=[
            Webhook(
                "pay",
                url,
                events=(JobFailed,),
                where="queue:pay",
                secret_env="HOOKS_SECRET",
                allow_networks=["127.0.0.0/8"],
                # A receiver that is down for half of the time takes some attempts.
                retry=Retry(max_attempts=100, base="100ms", cap="500ms"),
            )
        ],
    )

    @app.task(name="charge", queue="pay")
    async def charge(number: int) -> None:
        raise Reject(f"number {number}")

    return app


app = make_app(os.environ.get("HOOKS_STORAGE", "memory://"), os.environ.get("HOOKS_URL", "https://example.com/"))
