"""`python -m samite` and the `samite` console script."""

import sys


def main() -> None:
    """Run the CLI and leave with its exit code."""
    from samite.cli.app import run

    sys.exit(run())


if __name__ == "__main__":
    main()
