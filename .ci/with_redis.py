"""Starts a Redis of its own, runs a make target with its URL, and stops it: with_redis.py make TARGET [WORD...]."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.servers import RedisServer

if __name__ == "__main__":
    with TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        sys.exit(subprocess.run([*sys.argv[1:], f"URL={server.url}"], check=False).returncode)
