"""Starts a PostgreSQL, runs a make target with its URL, and stops it: with_postgres.py make TARGET [WORD...]."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.postgres_servers import PostgresServer

if __name__ == "__main__":
    with TemporaryDirectory() as folder, PostgresServer(Path(folder)) as server:
        sys.exit(subprocess.run([*sys.argv[1:], f"URL={server.url}"], check=False).returncode)
