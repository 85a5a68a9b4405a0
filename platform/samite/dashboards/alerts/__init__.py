"""All alert rules, in the order of their groups. Each has a page under `docs/runbooks/` of the name in kebab case."""

from samite.dashboards.alerts.operator import HARDWARE_ALERTS, OPERATOR_ALERTS
from samite.dashboards.alerts.runs import RUN_ALERTS
from samite.dashboards.alerts.training import TRAINING_ALERTS
from samite.dashboards.alerts.values import Alert

ALERTS: tuple[Alert, ...] = (*RUN_ALERTS, *TRAINING_ALERTS, *OPERATOR_ALERTS, *HARDWARE_ALERTS)
GROUPS = ("runs", "training", "operator", "hardware")

__all__ = ["ALERTS", "GROUPS", "Alert"]
