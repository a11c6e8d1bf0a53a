"""`python -m tenure`, the same as `tenure`."""

from tenure.cli.main import root


def main() -> None:
    """Run the command line and end the process with its exit code."""
    root.main(prog_name="tenure")


if __name__ == "__main__":
    main()
