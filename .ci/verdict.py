"""Reads pytest reports in JUnit XML and fails if a test was skipped, or if no test ran in one of them."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def verdict(report: str) -> int:
    """Print one line for each skip and return the exit code."""
    if not Path(report).exists():
        print(f"ci: pytest left no {Path(report).name}", file=sys.stderr)
        return 1

    ran = 0
    skips: list[str] = []
    for case in ElementTree.parse(report).iter("testcase"):
        skip = case.find("skipped")
        if skip is None or skip.get("type") == "pytest.xfail":
            ran += 1
        else:
            skips.append(f"{case.get('classname')}::{case.get('name')}: {skip.get('message')}")

    for line in skips:
        print(f"ci: skipped {line}", file=sys.stderr)
    if not ran:
        print("ci: no test ran", file=sys.stderr)
    return 1 if skips or not ran else 0


if __name__ == "__main__":
    sys.exit(max(map(verdict, sys.argv[1:])))
