"""The nine boards. The order is the order of the menu."""

from samite.dashboards.boards.checkpoints import CHECKPOINTS
from samite.dashboards.boards.control_plane import CONTROL_PLANE
from samite.dashboards.boards.experts import EXPERTS
from samite.dashboards.boards.fleet import FLEET
from samite.dashboards.boards.memory_compute import MEMORY_COMPUTE
from samite.dashboards.boards.nodes import NODES
from samite.dashboards.boards.numeric import NUMERIC
from samite.dashboards.boards.recovery import RECOVERY
from samite.dashboards.boards.run import RUN_BOARD
from samite.dashboards.panels import Board

BOARDS: tuple[Board, ...] = (FLEET, RUN_BOARD, RECOVERY, NUMERIC, EXPERTS, MEMORY_COMPUTE, CHECKPOINTS, NODES, CONTROL_PLANE)

__all__ = ["BOARDS"]
