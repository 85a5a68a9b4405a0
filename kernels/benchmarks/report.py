"""What a bench says: a table that is printed and written as it grows, so that a run that is cut short still tells something."""

import datetime as dt
import json
from pathlib import Path

import torch


class Report:
    """`<folder>/<date>-<kind>.md` with lines as printed and `.json` with all numbers."""

    def __init__(self, folder, kind, title, note=""):
        self.date = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        self.stem = Path(folder) / f"{self.date[:10]}-{kind}"
        self.record = {"date": self.date, "device": torch.cuda.get_device_name(), "torch": torch.__version__}
        self.lines = []
        self.say(f"# {title} on {self.record['device']}, {self.date[:10]}", "", f"torch {torch.__version__}. {note}".strip(), "")

    def say(self, *lines):
        """Prints and keeps lines."""
        for line in lines:
            print(line, flush=True)
            self.lines.append(line)
        self.stem.with_suffix(".json").write_text(json.dumps(self.record, indent=1) + "\n")
        self.stem.with_suffix(".md").write_text("\n".join(self.lines) + "\n")

    def head(self, *columns):
        """Begins a table."""
        self.say("| " + " | ".join(columns) + " |", "| " + " | ".join("---" for _ in columns) + " |")

    def row(self, table, values, *cells):
        """One line of a table, whose `values` join the list `table` of the record."""
        self.record.setdefault(table, []).append(values)
        self.say("| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |")
