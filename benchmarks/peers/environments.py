"""The environment of each peer, created below `.bench/` from the versions in versions.toml.

`python -m benchmarks.peers.environments` creates what is missing; `--renew KEY...` raises these peers to the newest
versions that can be installed today and writes them down.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, convert

ROOT = Path(__file__).parents[2]
MADE = ROOT / ".bench"
VERSIONS = Path(__file__).with_name("versions.toml")
PREFERRED = "3.12"

Storage = Literal["redis", "sqlite", "postgresql"]


class Source(Struct, frozen=True):
    """Where an adapter is and what it runs on: one table of versions.toml."""

    storage: Storage
    module: str | None = None
    """The Python module that obeys orders; or else `script`, by Node."""
    script: str | None = None
    wants: list[str] = []
    """The requirement for the registry; the newest version of it, when renewed."""
    pins: list[str] = []
    """All that is installed, each at one version."""
    same: str | None = None
    """The peer whose environment this one shares."""
    python: str = PREFERRED
    """The interpreter; if this machine does not have it, the one that runs this."""
    cells: list[str] = []
    """The cells that it is measured in, if it differs from another peer only there; all, if none is named."""


def sources() -> dict[str, Source]:
    """Return all peers by their keys."""
    return convert(tomllib.loads(VERSIONS.read_text()), dict[str, Source])


def command(key: str) -> list[str]:
    """Return the command that starts a peer's adapter, without the order.

    Raises:
            RuntimeError: its environment could not be created.
    """
    source = sources()[key]
    home = ensure_environment(key)
    if source.script is not None:
        return ["node", str(home / Path(source.script).name)]
    return [str(home / "bin" / "python"), "-m", str(source.module)]


def ensure_environment(key: str) -> Path:
    """Return the folder of a peer's environment; create it first if it is missing or its versions have changed.

    Raises:
        RuntimeError: it cannot be installed here.
    """
    known = sources()
    owner = known[key].same or key
    home = _installed(owner, known[owner])
    script = known[key].script
    if script is not None:
        # Node looks for packages in the script's folder.
        shutil.copy(ROOT / script, home)
    return home


def tool(name: str, pins: Sequence[str]) -> str:
    """Return the interpreter of an environment of other packages than a peer's; create it first if it is missing.

    Raises:
        RuntimeError: it cannot be installed here.
    """
    return str(_installed(name, Source("redis", module=name, pins=list(pins))) / "bin" / "python")


def _installed(name: str, source: Source) -> Path:
    home = MADE / name
    stamp, wanted = home / ".made", _fingerprint(source)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        print(f"installing {name}", file=sys.stderr)
        _fill(home, source, source.pins)
        stamp.write_text(wanted)
    return home


def _fill(home: Path, source: Source, packages: Sequence[str]) -> None:
    if source.module is None:
        if packages:
            _call("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(home), *packages)
        return
    _call(_python(source.python), "-m", "venv", str(home))
    pip = (str(home / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check", "install")
    if packages:
        _call(*pip, *(() if packages is source.wants else ("--no-deps",)), *packages)


def _python(version: str) -> str:
    found = subprocess.run([ROOT / ".ci" / "find-python", version], capture_output=True, text=True)
    return found.stdout.strip() or sys.executable


def _call(*words: str) -> None:
    done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def _fingerprint(source: Source) -> str:
    return hashlib.sha256(repr((source.pins, source.python)).encode()).hexdigest()


def _renewed(key: str) -> list[str]:
    source, home = sources()[key], MADE / key
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    _fill(home, source, source.wants)
    if source.module is None:
        listed = json.loads((home / "package-lock.json").read_text())["packages"]
        # Optional packages exist for one kind of machine, and cannot be requested on another.
        chosen = [path for path in listed if path.count("node_modules/") == 1 and not listed[path].get("optional")]
        names = {path: path.rpartition("node_modules/")[2] for path in chosen}
        return sorted(f"{name}@{listed[path]['version']}" for path, name in names.items())
    frozen = subprocess.run(
        [home / "bin" / "python", "-m", "pip", "freeze"], capture_output=True, text=True, check=True
    )
    return sorted(line for line in frozen.stdout.splitlines() if "==" in line)


def _write(key: str, pins: Sequence[str]) -> None:
    """Put the pins into the peer's table, and leave the rest of the file unchanged."""
    lines, inside, skipping = list[str](), False, False
    written = ["pins = [", *(f'    "{pin}",' for pin in pins), "]"]
    for line in [*VERSIONS.read_text().splitlines(), "["]:
        if line.startswith("["):
            if inside:
                while lines and not lines[-1]:
                    lines.pop()
                lines += [*written, ""]
            inside = line == f"[{key}]"
        skipping = skipping or (inside and line.startswith("pins = ["))
        if not skipping:
            lines.append(line)
        skipping = skipping and line != "]" and not line.endswith("[]")
    VERSIONS.write_text("\n".join(lines[:-1]).rstrip() + "\n")


def main() -> None:
    """Create or renew environments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--renew", nargs="*", metavar="KEY", help="these peers, or all")
    args = parser.parse_args()
    # A requirement that pip finds satisfied by the user's own packages would not be pinned.
    os.environ["PYTHONNOUSERSITE"] = "1"
    known = sources()
    if args.renew is not None:
        for key in args.renew or [key for key, source in known.items() if source.wants]:
            print(f"renewing {key}", file=sys.stderr)
            _write(key, _renewed(key))
            (MADE / key / ".made").write_text(_fingerprint(sources()[key]))
    for key in known:
        ensure_environment(key)


if __name__ == "__main__":
    main()
