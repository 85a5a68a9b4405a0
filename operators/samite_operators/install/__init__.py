"""What the chart's Jobs run, in the operator's image: runtimes after an install, the check before an upgrade, the test of `helm test`.

    python -m samite_operators.install runtimes|check|selftest [FOLDER]

FOLDER (default /etc/samite/documents) holds what the chart rendered: `release.json` (`release.Release`) and one JSON document for each runtime.
Exit code 0: all is well; 1: problems, one a line, each with what to do. kopf is not needed here.
"""
