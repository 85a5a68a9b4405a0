"""Metrics of other exporters that boards and alert rules may name: NVIDIA's DCGM exporter, KubeRay, Kueue. Each with the labels that are used.

They are not Samite's to declare; a name that is not in this table, and not in the registry, fails the tests.
"""

from collections.abc import Mapping

_DCGM = frozenset({"Hostname", "gpu", "UUID", "modelName", "instance", "job"})

OUTSIDE_METRICS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        (
            "DCGM_FI_DEV_XID_ERRORS",
            "DCGM_FI_DEV_GPU_TEMP",
            "DCGM_FI_DEV_MEMORY_TEMP",
            "DCGM_FI_DEV_POWER_USAGE",
            "DCGM_FI_DEV_FB_USED",
            "DCGM_FI_DEV_ROW_REMAP_FAILURE",
            "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
            "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
            "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
            "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
            "DCGM_FI_PROF_DRAM_ACTIVE",
        ),
        _DCGM,
    ),
    "kuberay_cluster_condition_provisioned": frozenset({"name", "namespace", "condition"}),
    "kuberay_job_deployment_status": frozenset({"name", "namespace", "deployment_status"}),
    "kueue_pending_workloads": frozenset({"cluster_queue", "status"}),
}

FATAL_XIDS = (48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 121, 140)
"""XIDs after which a GPU or its node cannot be trusted: double-bit ECC, row remapping, NVLink, off the bus, contained and uncontained ECC, GSP."""
