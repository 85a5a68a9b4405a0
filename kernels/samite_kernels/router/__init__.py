"""The sigmoid router of LatentMoE after its product: top-k with bias, normalised weights, and the margin histogram of quantile balancing."""

from samite_kernels.router.reference import count_margins_reference, route_reference
from samite_kernels.router.route import Routes, count_margins, explain_route, route

__all__ = ["Routes", "count_margins", "count_margins_reference", "explain_route", "route", "route_reference"]
