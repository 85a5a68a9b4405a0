"""The HTML report of a run: one self-contained file, built from the run folder alone.

    run_data.py   reads the folder into plain values; what is missing or damaged is listed, never raised
    curves.py     metric records as curves over steps: attempts, superseded steps, thinning
    summary.py    the six lines of a run, and its headline
    markup.py     HTML that cannot be injected into
    chart.py      line and area charts as inline SVG
    timeline.py   the run as a strip of time, and the anatomy of each recovery
    panels.py     which charts there are
    tables.py     checkpoints, recoveries, events, spec
    page.py       `build_report`

Knows no engine: a copied run folder is enough. Charts work without scripts; the script adds reading-off and filters.
"""

from samite.report.page import build_report
from samite.report.run_data import RunData, read_run
from samite.report.summary import summary_lines

__all__ = ["RunData", "build_report", "read_run", "summary_lines"]
