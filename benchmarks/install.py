"""Measures the cost of an installation, ours and others': its size, and the time of an import and of `--help`.

    python -m benchmarks.install [--rounds 10] [--write docs/benchmarks/install.md]

Each package gets a fresh environment without pip in `.bench/install`. The size is that of site-packages, without
bytecode, which Python writes itself, and with it. A time is the least of all rounds; the rounds alternate between the
packages. The time of the interpreter alone is a row of its own.
"""

import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".bench" / "install"


@dataclass
class Package:
    """The packages that are installed, and how a program and a user at the command line start them."""

    wanted: str
    imports: str
    command: Sequence[str]
    megabytes: float = 0.0
    with_bytecode: float = 0.0
    distributions: int = 0
    version: str = ""
    import_times: list[float] = field(default_factory=list[float])
    help_times: list[float] = field(default_factory=list[float])

    @property
    def home(self) -> Path:
        """The folder of its environment."""
        return HOME / self.wanted.replace("[", "-").rstrip("]")

    @property
    def name(self) -> str:
        """The name of its distribution."""
        return self.wanted.partition("[")[0]


PACKAGES = (
    Package("tenure", "from tenure import Tenure", ("tenure", "--help")),
    Package("tenure[cli]", "from tenure import Tenure", ("tenure", "--help")),
    Package("tenure[redis]", "from tenure import Tenure", ("tenure", "--help")),
    Package("celery[redis]", "from celery import Celery", ("celery", "--help")),
    Package("rq", "from rq import Queue", ("rq", "--help")),
    Package("arq", "from arq import create_pool", ("arq", "--help")),
    Package(
        "dramatiq[redis]",
        "import dramatiq; from dramatiq.brokers.redis import RedisBroker",
        ("dramatiq", "--help"),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Install, measure, print, and write a page if one is named."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.install", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="how often each time is taken (%(default)s)")
    parser.add_argument("--write", type=Path, metavar="PATH", help="write the table to this page, too")
    options = parser.parse_args(argv)
    HOME.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        install(package)
    bare: list[float] = []
    for _ in range(options.rounds):
        bare.append(seconds(sys.executable, "-I", "-c", "pass"))
        for package in PACKAGES:
            package.import_times.append(seconds(package.home / "bin" / "python", "-I", "-c", package.imports))
            program, *words = package.command
            package.help_times.append(seconds(package.home / "bin" / program, *words))
    page = table(PACKAGES, min(bare), options.rounds)
    print(page)
    if options.write is not None:
        options.write.write_text(page)
    return 0


def install(package: Package) -> None:
    """Create its environment again, measure its size, and import it once, so that its bytecode is there."""
    print(f"installing {package.wanted}", file=sys.stderr)
    shutil.rmtree(package.home, ignore_errors=True)
    call(sys.executable, "-m", "venv", "--without-pip", package.home)
    python = package.home / "bin" / "python"
    wanted = package.wanted
    if package.name == "tenure":
        call(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", HOME, cwd=ROOT)
        [wheel] = HOME.glob("tenure-*.whl")
        wanted = f"{wheel}{wanted.removeprefix('tenure')}"
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", python)
    call(*pip, "install", "--no-compile", wanted)
    [site] = package.home.glob("lib/python*/site-packages")
    package.megabytes = size(site)
    call(python, "-I", "-m", "compileall", "-q", site)
    package.with_bytecode = size(site)
    infos = [folder.name for folder in site.glob("*.dist-info")]
    package.distributions = len(infos)
    [package.version] = [
        info.removesuffix(".dist-info").split("-")[1] for info in infos if info.split("-")[0] == package.name
    ]


def size(folder: Path) -> float:
    """Return the megabytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6


def seconds(*command: str | Path) -> float:
    """Return how long a process takes from its start to its end."""
    began = time.perf_counter()
    call(*command)
    return time.perf_counter() - began


def call(*command: str | Path, cwd: Path = HOME) -> None:
    """Run a command.

    Raises:
        RuntimeError: the command failed.
    """
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.decode(errors='replace').strip()}")


def table(packages: Sequence[Package], bare: float, rounds: int) -> str:
    """Return the page."""
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout
    lines = [
        "<!-- written by make bench-install; measure again instead of editing -->",
        "# What an installation costs",
        "",
        f"Measured on {datetime.now(UTC):%Y-%m-%d} at commit {commit.strip()}, CPython {platform.python_version()}, "
        f"{os.cpu_count()} cores.",
        "Megabytes are those of site-packages in a fresh environment without pip: the files as installed, and with the",
        f"bytecode of all modules. A time is that of a whole process, the least of {rounds}. An interpreter that does",
        f"nothing takes {bare * 1000:.0f} ms.",
        "",
        "| package | version | distributions | MB | MB with bytecode | import, ms | `--help`, ms |",
        "|---|---|---:|---:|---:|---:|---:|",
        *(
            f"| {package.wanted} | {package.version} | {package.distributions} | {package.megabytes:.1f} "
            f"| {package.with_bytecode:.1f} | {min(package.import_times) * 1000:.0f} "
            f"| {min(package.help_times) * 1000:.0f} |"
            for package in packages
        ),
        "",
        "The imports:",
        "",
        *(f"- `{imports}`" for imports in dict.fromkeys(package.imports for package in packages)),
        "",
        "celery imports most of itself only when it is used.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
