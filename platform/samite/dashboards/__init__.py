"""Dashboards and alert rules as code, built from the registry of signals.

    panels.py      what a board, a row, a panel and a query are          promql.py     which metrics and labels a query names
    boards/        the nine boards as values                            alerts/       the alert rules as values, each with its runbook
    outside.py     metrics of others that boards and rules may name
    rendering.py   boards to Grafana's JSON (needs the extra `dashboards`)
    rules.py       alerts to rule files and PrometheusRules              generate.py   writes all generated files
    export.py      hands out what was generated: for `samite dashboards export` and `samite alerts export`, without the extra

The generated files are committed, in the wheel (`generated/`) and in the chart (`helm/samite/dashboards/`); a test keeps them equal to the code.
"""
