"""Flows: calls that wait for each other and get each other's results, and one redrive that resumes a failed flow.

Run it: python examples/flows.py
"""

import asyncio
from dataclasses import dataclass

from tenure import JobFailedError, Retry, State, Tenure

app = Tenure("memory://")
shop_is_open = False


@dataclass
class Image:
    name: str
    pixels: int


@app.task
async def fetch(url: str) -> Image:
    return Image(url.rpartition("/")[2], pixels=4_000_000)


@app.task
def shrink(image: Image, *, factor: int) -> Image:
    # A plain function, which runs in a thread.
    return Image(f"{factor}-{image.name}", image.pixels // factor**2)


@app.task
async def store(image: Image, folder: str = "images") -> str:
    return f"{folder}/{image.name}"


@app.task
async def price(item: int) -> int:
    return item * 100


@app.task
async def invoice(prices: list[int], customer: str) -> str:
    return f"{customer} pays {sum(prices)}"


@app.task(retry=Retry(max_attempts=1))
async def order(text: str) -> str:
    if not shop_is_open:
        raise ConnectionError("the shop is closed")
    return f"ordered: {text}"


@app.task
async def report(lines: list[str]) -> str:
    return "; ".join(lines)


@app.task
async def notify(what: str) -> None:
    print(f"the operator is notified: {what}")


async def main() -> None:
    global shop_is_open
    async with app, app.worker():
        # A chain: each call gets the result of the one before it, as its first argument.
        chain = fetch.call("https://example.org/cat.png") | shrink.take(factor=2) | store.take(folder="small")
        job = await chain.enqueue(id="cat", timeout="1h")
        path = await job.result()
        print(f"the chain stored {path}")
        assert path == "small/2-cat.png"
        # The same id makes no second flow.
        assert (await chain.enqueue(id="cat")).action == "duplicate"

        # A group: calls that run side by side, and one that gets all their results, in order.
        group = app.group([price.call(item) for item in (1, 2, 3)]) | invoice.take(customer="ann")
        line = await (await group.enqueue()).result()
        print(f"the group made an invoice: {line}")
        assert line == "ann pays 600"

        # A graph: each node waits for those whose results it gets.
        with app.flow("purchase") as dag:
            prices = dag.add(app.group([price.call(item) for item in (4, 5)]))
            bill = dag.add(invoice.call(prices.value, customer="bob"))
            ordered = dag.add(order.call(bill.value))
            summary = dag.add(report.call([bill.value, ordered.value]))
            dag.on_failure(notify.call("the purchase failed"))
        flow = await dag.enqueue()
        try:
            await flow.result()
        except JobFailedError as error:
            print(f"the graph failed: {error.reason}")
        else:
            raise AssertionError("an order went through, and the shop is closed")
        assert await flow.node(summary).state() is State.FAILED

        # Mend the cause, and redrive the job that failed: all that failed by it goes on.
        shop_is_open = True
        await flow.node(ordered).redrive()
        await flow.node(ordered).result()
        await flow.result()
        text = await flow.node(summary).result()
        print(f"after one redrive: {text}")
        assert text == "bob pays 900; ordered: bob pays 900"


asyncio.run(main())
