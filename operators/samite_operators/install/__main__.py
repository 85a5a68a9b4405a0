"""Entry point of the chart's Jobs; see the package."""

import sys
from pathlib import Path

from samite.engines.kuberay.api_client import connect
from samite.errors import SamiteError, UsageError
from samite_operators.install.release import DEFAULT_FOLDER, Release
from samite_operators.install.runtimes import apply_runtimes
from samite_operators.install.selftest import self_test
from samite_operators.install.upgrade import check_upgrade

USAGE = "usage: python -m samite_operators.install runtimes|check|selftest [FOLDER]"


def main(arguments: list[str]) -> int:
    """Run one command; returns the exit code. Findings go to the output, problems to the error output."""
    try:
        command, folder = _parse(arguments)
        api = connect(timeout_s=15.0)
        if command == "runtimes":
            names = apply_runtimes(api, folder)
            sys.stdout.write(f"applied: {', '.join(names) or 'nothing'}\n")
            return 0
        release = Release.read(folder)
        findings = check_upgrade(api, release) if command == "check" else self_test(api, release)
    except SamiteError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write("".join(f"{line}\n" for line in findings.seen))
    sys.stderr.write("".join(f"PROBLEM {line}\n" for line in findings.problems))
    return 1 if findings.problems else 0


def _parse(arguments: list[str]) -> tuple[str, Path]:
    if len(arguments) not in (1, 2) or arguments[0] not in ("runtimes", "check", "selftest"):
        raise UsageError(USAGE)
    return arguments[0], Path(arguments[1]) if len(arguments) == 2 else DEFAULT_FOLDER


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
