"""Delivers the messages of one webhook: the handler and the options of its delivery jobs."""

import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from random import Random

from tenure.clock import SECOND, Clock
from tenure.core.duration import duration
from tenure.errors import UsageError
from tenure.handlers.control import Snooze
from tenure.options import TTL, Retry, Stall, TaskOptions
from tenure.options.merging import overlay
from tenure.webhooks.declaration import Webhook
from tenure.webhooks.request import LIMIT, Answer, RequestFailedError, Resolve, Resolver, post
from tenure.webhooks.signature import secrets_of, signed_headers

DELAYS = (5, 30, 120, 300, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 21_600)
"""Seconds between two attempts, about 21 hours in all."""

LONGEST = DELAYS[-1]
"""The longest time that a receiver may ask for with Retry-After, in seconds."""

SPREAD = 0.1
"""Each delay is longer by a random share up to this one, so that a receiver that returns is not overrun."""

GONE = 410
"""The status with which a receiver asks for no more messages."""

_USUAL = Retry(len(DELAYS) + 1, base=DELAYS[0], cap=LONGEST, jitter=SPREAD)

KEPT = timedelta(days=7)
"""How long a message is kept while it is not delivered: as long as the event log keeps its event by default."""

AT_ONCE = 4
"""How many messages of a webhook are sent at once, so that a receiver that hangs leaves room for the others."""

STALLS = 100
"""How many processes may die while they deliver one message. It does not harm them, so this is not its fault."""


class DeliveryFailedError(Exception):
    """A message was not taken. `retry_after`: the seconds that the receiver asks for."""

    def __init__(self, why: str, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.retry_after = retry_after


_RESOLVER = Resolver()


class WebhookSender:
    """Sends the messages of one webhook. `environ`: where its secrets are."""

    def __init__(
        self,
        webhook: Webhook,
        clock: Clock,
        *,
        resolve: Resolve | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.webhook = webhook
        self._clock = clock
        self._resolve = resolve or _RESOLVER
        self._environ = environ
        self._context: ssl.SSLContext | None = None

    def problem(self) -> str | None:
        """Return why this process cannot send; None if it can."""
        try:
            self._secrets()
        except UsageError as error:
            return str(error)
        return None

    async def send(self, message: str, body: str) -> Answer:
        """Send a message once and return the answer, with any status.

        Raises:
            RequestFailedError: no answer came.
            UsageError: this process has no valid secret.
        """
        data = body.encode()
        headers = signed_headers(message, self._clock.now() // SECOND, data, self._secrets())
        return await post(
            self.webhook.receiver,
            headers,
            data,
            opened=self.webhook.opened,
            resolve=self._resolve,
            tls=self.tls,
            clock=self._clock,
        )

    def _secrets(self) -> tuple[bytes, ...]:
        name = self.webhook.secret_env
        text = self._environ.get(name)
        if text is None:
            raise UsageError(
                f"the environment variable {name} of webhook {self.webhook.name!r} is not set; set it here"
            )
        return secrets_of(text, name=name)

    def tls(self) -> ssl.SSLContext:
        """Return the context for https, which is made once."""
        # To read all certificates takes some 10 ms.
        if self._context is None:
            self._context = ssl.create_default_context()
            self._context.minimum_version = ssl.TLSVersion.TLSv1_2
        return self._context


def refusal_of(answer: Answer) -> str | None:
    """Return why an answer means that the message was not taken; None if it was taken."""
    if answer.taken:
        return None
    why = f"the receiver answered {answer.status} {answer.reason}".rstrip()
    if 300 <= answer.status < 400:
        return f"{why}, and redirects are not followed; declare the URL that it names"
    return f"{why}: {answer.text}" if answer.text else why


def delivery_options(webhook: Webhook, rng: Random) -> TaskOptions:
    """Return the options of the task that delivers the messages of a webhook."""
    return TaskOptions(
        retry=_delayed(webhook.retry, rng),
        stall=Stall(max_count=STALLS),
        timeout=LIMIT + 5,
        ttl=TTL(KEPT),
        concurrency_key=webhook.name,
        concurrency_limit=AT_ONCE,
    )


def delivery_handler(
    sender: WebhookSender, pause: Callable[[Webhook, str], Awaitable[None]]
) -> Callable[[str, str], Awaitable[int]]:
    """Return the handler of that task. `pause`: pauses the webhook after status 410, for the reason given."""

    async def deliver(message: str, body: str) -> int:
        try:
            answer = await sender.send(message, body)
        except RequestFailedError as error:
            raise DeliveryFailedError(str(error)) from None
        why = refusal_of(answer)
        if why is None:
            return answer.status
        if answer.status == GONE:
            await pause(sender.webhook, why)
            # The message waits with the others until an operator resumes the webhook.
            raise Snooze(0, f"{why}; the webhook is paused")
        raise DeliveryFailedError(why, answer.retry_after)

    return deliver


def _delayed(own: Retry | None, rng: Random) -> Retry:
    """Return the retry options of a webhook. Their delay is never shorter than the receiver asks for, up to `LONGEST`.

    `own`: the options that the webhook sets; the others are as for all webhooks, not as for tasks.
    """
    own = own or Retry()
    filled = overlay(own, _USUAL)
    rule = filled.rule()

    def usual(attempt: int, error: BaseException) -> timedelta:
        wanted = None if own.delay is None else own.delay(attempt, error)
        if wanted is not None:
            return duration(wanted, field="the result of Retry.delay", zero=True)
        if own.sets_delay:
            return timedelta(microseconds=rule.delay(attempt, rng))
        return timedelta(seconds=DELAYS[min(attempt, len(DELAYS)) - 1] * (1 + SPREAD * rng.random()))

    def delay(attempt: int, error: BaseException) -> timedelta:
        asked = error.retry_after if isinstance(error, DeliveryFailedError) else None
        return max(usual(attempt, error), timedelta(seconds=min(LONGEST, asked or 0.0)))

    return overlay(Retry(delay=delay), filled)
