"""The node agent: one small process per node that tells what only the node knows, and the series that exist once per rank.

    /proc ────────────── host memory, whether a rank's process runs
    NVML (if present) ── device memory, utilization, health                ──> readings ──> GET /metrics
    run folder, or UDP ─ heartbeats of the ranks on this node                           └─> OTLP
    drain file ───────── the machine will be taken away

`python -m samite.engines.node_agent --help`. It decides nothing and keeps nothing: a restarted agent is complete after one look. The local engine
starts it beside the supervisor when somebody listens (an OTLP endpoint); in Kubernetes the chart brings it as a DaemonSet (`agent.enabled`).
"""
