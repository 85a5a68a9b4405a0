"""What an alert rule is, and the few expressions that many of them share.

A page goes out only if a person can shorten the loss now; everything else is a ticket.
"""

import re
from dataclasses import dataclass

OF_RUN = "k8s_namespace_name, samite_run_name, samite_run_uid"
"""Labels that name one run, whoever told the series; without a namespace on a machine of one's own."""
RUNNING = f'max by ({OF_RUN}) (samite_run_status{{samite_run_state="running"}}) == 1'


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """One rule. `lasts` is how long the expression must hold, such as `5m`; `board` the uid of the dashboard to open."""

    name: str
    group: str
    severity: str
    """page or ticket"""
    expr: str
    lasts: str
    summary: str
    """One line with `{{ $labels... }}`."""
    means: str
    """What it means, in a sentence or two; the runbook says the rest."""
    board: str

    @property
    def runbook(self) -> str:
        """Name of its page: SamiteRunHeld is `run-held`."""
        words = re.findall(r"[A-Z][a-z]*", self.name.removeprefix("Samite"))
        return "-".join(word.lower() for word in words)


def grown(selector: str, window: str) -> str:
    """By how much a counter grew in `window`, its first value included.

    `increase` alone misses it: a counter that begins with its first event has nothing to increase from.
    """
    return f"(max_over_time({selector}[{window}]) unless {selector} offset {window} or increase({selector}[{window}]))"


def told(events: str, window: str, by: str = OF_RUN) -> str:
    """How many events of these names (a regular expression without `samite.`) were told in `window`."""
    selector = f'samite_events_total{{samite_event_name=~"samite.({events})"}}'
    return f"sum by ({by}) {grown(selector, window)}"
