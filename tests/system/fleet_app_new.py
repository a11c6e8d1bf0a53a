"""The app of the system tests after a deploy: one more task and one more schedule."""

from importlib import import_module

from tenure import Tenure

# As its workers import it, from their own folder.
fleet_app = import_module("fleet_app")
app: Tenure = fleet_app.app


@app.task(name="fresh")
async def fresh() -> None:
    """Note that it ran."""
    fleet_app.note("fresh")


@app.every("2s", name="often")
async def often() -> None:
    """Note each tick."""
    fleet_app.note("often")
