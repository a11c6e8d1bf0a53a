"""`python -m holdfast`, the same as `holdfast`."""

from holdfast.cli.main import root


def main() -> None:
    """Run the command line and end the process with its exit code."""
    root.main(prog_name="holdfast")


if __name__ == "__main__":
    main()
