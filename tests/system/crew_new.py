"""The app of the system tests after a deploy: one task and one schedule more."""

from importlib import import_module

from tenure import Tenure

# As its workers import it, from their own folder.
crew = import_module("crew")
app: Tenure = crew.app


@app.task(name="fresh")
async def fresh() -> None:
    """Note that it ran."""
    crew.note("fresh")


@app.every("2s", name="often")
async def often() -> None:
    """Note each tick."""
    crew.note("often")
