"""Nodes and hardware: nodes that left, nodes that are not trusted, and what the hardware itself reports (DCGM)."""

from samite.dashboards.panels import Board, Kind, Needs, Panel, Query, Row, happened, lines

_HOST = "{{Hostname}} {{gpu}}"
_RUN = 'samite_run_name=~"$run"'


def _dcgm(title: str, about: str, expr: str, unit: str = "short") -> Panel:
    return lines(title, about, Query(expr=expr, legend=_HOST), unit=unit, needs=Needs.OUTSIDE)


NODES = Board(
    uid="samite-nodes",
    title="Samite / Nodes and hardware",
    about="Excluded, lost and struck nodes, and the hardware below them.",
    rows=(
        Row(
            title="Nodes of runs",
            panels=(
                lines(
                    "Excluded nodes",
                    "Nodes that a run does not use.",
                    Query(expr=f"max by (samite_run_name) (samite_node_excluded_count{{{_RUN}}})", legend="{{samite_run_name}}"),
                ),
                lines(
                    "Spare nodes",
                    "Nodes that stand ready; only of runs that ask for spares.",
                    Query(expr=f"min by (samite_run_name) (samite_node_spare_count{{{_RUN}}})", legend="{{samite_run_name}}"),
                    needs=Needs.RARE,
                ),
                Panel(
                    title="Strikes",
                    kind=Kind.TABLE,
                    queries=(Query(expr=f"topk(20, sum by (samite_node) (samite_node_strike_count{{{_RUN}}}) > 0)"),),
                    about="Weak evidence against nodes. At three strikes a run excludes a node; samite describe RUN shows why.",
                    needs=Needs.RARE,
                ),
                Panel(
                    title="Nodes that left",
                    kind=Kind.BARS,
                    queries=(Query(expr=happened("node.lost|preemption.notice", _RUN), legend="{{samite_event_name}}"),),
                    about="Lost without notice, or announced.",
                    width=12,
                    needs=Needs.FAULT,
                ),
                Panel(
                    title="Nodes that are not trusted",
                    kind=Kind.BARS,
                    queries=(
                        Query(
                            expr=happened("node.suspected|node.quarantined|node.released|straggler.detected", _RUN),
                            legend="{{samite_event_name}}",
                        ),
                    ),
                    about="Suspected, excluded, released again.",
                    width=12,
                    needs=Needs.RARE,
                ),
            ),
        ),
        Row(
            title="Hardware (DCGM exporter)",
            panels=(
                Panel(
                    title="Last XID",
                    kind=Kind.TABLE,
                    queries=(Query(expr="max by (Hostname, gpu) (DCGM_FI_DEV_XID_ERRORS) > 0"),),
                    about="The field keeps the last code until the exporter restarts.",
                    needs=Needs.OUTSIDE,
                ),
                _dcgm(
                    "Row remapping",
                    "Failed remaps, or rows remapped for uncorrectable errors.",
                    "max by (Hostname, gpu) (DCGM_FI_DEV_ROW_REMAP_FAILURE) + max by (Hostname, gpu) (DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS) > 0",
                ),
                _dcgm(
                    "PCIe replays", "Per second.", "sum by (Hostname, gpu) (rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER[$__rate_interval])) > 0"
                ),
                _dcgm("GPU temperature", "Ten hottest.", "topk(10, max by (Hostname, gpu) (DCGM_FI_DEV_GPU_TEMP))", "celsius"),
                _dcgm("Memory temperature", "Ten hottest.", "topk(10, max by (Hostname, gpu) (DCGM_FI_DEV_MEMORY_TEMP))", "celsius"),
                _dcgm("Power", "Sum of a node.", "sum by (Hostname) (DCGM_FI_DEV_POWER_USAGE)", "watt"),
                _dcgm("NVLink", "Traffic of a node.", "sum by (Hostname) (DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL)"),
                _dcgm("Memory used", "Largest of a node.", "max by (Hostname) (DCGM_FI_DEV_FB_USED)", "decmbytes"),
            ),
        ),
    ),
)
