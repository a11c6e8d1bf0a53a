"""A small shop: a request stores an order together with its job, and the job charges the order exactly once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID, uuid4

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field
from sqlalchemy import MetaData, func, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.shop.database import database_url
from tenure import Retry, Stall, Tenure, Timing, current_job

# Shorter than the defaults, so that the storm does not wait 27 s for the jobs of a worker that it has paused.
TIMING = Timing(lease="2s", sweep="500ms", grace="500ms")
LIMIT = 100_000

app = Tenure(database_url(), name="shop", timing=TIMING)
address = make_url(database_url())
engine = create_async_engine(
    # `schema` and `listen` are options of Tenure, which libpq does not know.
    address.set(drivername="postgresql+psycopg").difference_update_query(["schema", "listen", "listen_url"])
)


# --- tables ----------------------------------------------------------------------------------------


class Base(DeclarativeBase):
    # One schema for the jobs and the shop if the URL names one; else `tenure` and `public`.
    metadata = MetaData(schema=str(address.query["schema"]) if "schema" in address.query else None)


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    cents: Mapped[int]
    job_id: Mapped[str]


class Charge(Base):
    """A charge. No constraint keeps an order from being charged twice: only the job's transaction does."""

    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[UUID] = mapped_column(index=True)
    cents: Mapped[int]
    run: Mapped[int]


# --- the job ---------------------------------------------------------------------------------------


# A run that died or failed has written nothing. So the job may run again as often as it needs.
@app.task(timeout="30s", retry=Retry(max_attempts=10, base="200ms"), stall=Stall(max_count=1_000))
async def charge(order_id: UUID) -> None:
    """Write the charge in the transaction that completes the job: both are committed, or neither is."""
    async with AsyncSession(engine) as session, current_job().transaction(session):
        order = await session.get_one(Order, order_id)
        session.add(Charge(order_id=order_id, cents=order.cents, run=current_job().run))
        await session.flush()
        await asyncio.sleep(0.1)  # so that kills and pauses hit runs that have written, but not committed


# --- the web application ---------------------------------------------------------------------------


class NewOrder(BaseModel):
    """The body of POST /orders. A client that got no answer sends the same id again, or asks for that order."""

    id: UUID = Field(default_factory=uuid4)
    cents: int = Field(gt=0, le=1_000_000)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with app:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
    await engine.dispose()


api = FastAPI(title="A small shop", lifespan=lifespan)


@api.post("/orders", status_code=201)
async def place(new: NewOrder, request: Request) -> dict[str, object]:
    """Store an order and its job in one transaction. Any exception before the commit leaves neither."""
    async with AsyncSession(engine) as session:
        job = await charge.options(tx=session).enqueue(new.id)
        session.add(Order(id=new.id, cents=new.cents, job_id=job.id))
        try:
            await session.flush()
        except IntegrityError:
            raise HTTPException(409, "an order with this id exists") from None
        if new.cents > LIMIT:
            raise HTTPException(402, f"an order may cost {LIMIT} cents at most")
        if await request.is_disconnected():
            raise HTTPException(499, "the client has left")
        await session.commit()
    return {"id": new.id, "cents": new.cents}


@api.get("/orders/{order_id}")
async def show(order_id: UUID) -> dict[str, object]:
    async with AsyncSession(engine) as session:
        order = await session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, "order not found")
        charges = await session.scalar(select(func.count()).where(Charge.order_id == order_id))
    state = await charge.job(order.job_id).state()
    return {"id": order_id, "cents": order.cents, "job": state, "charges": charges}
