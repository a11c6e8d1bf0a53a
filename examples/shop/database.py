"""Names the database of the shop: DATABASE_URL, or else the server that `python -m examples.shop` started."""

import os
from pathlib import Path

STARTED = Path(__file__).parents[2] / "build" / "shop-database-url"
"""The file with the address of the server that `python -m examples.shop` started."""


def database_url() -> str:
    """Return the address of the PostgreSQL database: postgresql://... ."""
    if given := os.environ.get("DATABASE_URL"):
        return given
    try:
        return STARTED.read_text()
    except FileNotFoundError:
        raise SystemExit("the shop does not run: start it with python -m examples.shop") from None
