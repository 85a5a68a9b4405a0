"""`python -m samite` and the `samite` console script."""

import sys


def main() -> None:
    """Run the CLI and leave with its exit code."""
    try:
        from samite.cli.app import run

        code = run()
    except KeyboardInterrupt:
        # While modules still load: nothing has been done yet.
        sys.stderr.write("interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
