"""Memory and compute: how near memory is to its end, and which part of a step is waiting."""

from samite.dashboards.panels import RUN, STAGE, Board, Needs, Query, Row, lines, mean

_PEAK = f'samite_device_memory_peak_bytes{{{RUN}, samite_memory_kind="reserved"}}'
_PART = 'sum by (samite_run_name) (rate(samite_step_duration_seconds_sum{{{where}, samite_step_part="{part}"}}[$__rate_interval]))'
_OTHERS = f"1 - {_PART.format(where=STAGE, part='compute')} / {_PART.format(where=STAGE, part='total')}"

MEMORY_COMPUTE = Board(
    uid="samite-memory-compute",
    title="Samite / Memory and compute",
    about="Device and host memory, the parts of a step, and ranks that slow down the rest.",
    rows=(
        Row(
            title="Memory",
            panels=(
                lines(
                    "Device memory, peak over limit",
                    "Largest share of any rank by stage. Over 96 % the next longer document can end the run.",
                    Query(
                        expr=f"max by (samite_stage_name) ({_PEAK} / on (instance, samite_run_uid) group_left ()"
                        f" max by (instance, samite_run_uid) (samite_device_memory_limit_bytes{{{RUN}}}))",
                        legend="{{samite_stage_name}}",
                    ),
                    unit="percentunit",
                    needs=Needs.GPU,
                ),
                lines(
                    "Device memory by pool",
                    "Of the fullest rank. communication is what other libraries hold outside the allocator.",
                    Query(expr=f"max by (samite_memory_kind) (samite_device_memory_usage_bytes{{{RUN}}})", legend="{{samite_memory_kind}}"),
                    unit="bytes",
                    needs=Needs.GPU,
                ),
                lines(
                    "Allocator retries",
                    "Allocations that only succeeded after the cache was emptied: memory is fragmented or nearly full.",
                    Query(
                        expr=f"sum by (instance) (rate(samite_device_memory_retries_total{{{RUN}}}[$__rate_interval])) > 0",
                        legend="{{instance}}",
                    ),
                    needs=Needs.GPU,
                ),
                lines(
                    "Fullest ranks",
                    "Ten ranks with the largest peak.",
                    Query(expr=f"topk(10, max by (instance) ({_PEAK}))", legend="{{instance}}"),
                    unit="bytes",
                    width=12,
                    needs=Needs.GPU,
                ),
                lines(
                    "Host memory",
                    "Resident memory of the ranks that export.",
                    Query(expr=f"max by (instance) (process_memory_usage_bytes{{{RUN}}})", legend="{{instance}}"),
                    unit="bytes",
                    width=12,
                ),
            ),
        ),
        Row(
            title="Compute",
            panels=(
                lines(
                    "Step time by part",
                    "Mean of an interval.",
                    Query(expr=mean("samite_step_duration_seconds", "samite_step_part", STAGE), legend="{{samite_step_part}}"),
                    unit="s",
                ),
                lines(
                    "Waiting for others",
                    "Share of a step that rank 0 did not compute: communication, and waiting for slower ranks.",
                    Query(expr=_OTHERS, legend="{{samite_run_name}}"),
                    unit="percentunit",
                ),
                lines(
                    "Straggler",
                    "Compute time of the slowest rank over the median. samite events names the rank.",
                    Query(expr=f"max by (samite_run_name) (samite_step_straggler_ratio{{{STAGE}}})", legend="{{samite_run_name}}"),
                ),
                lines(
                    "Waiting for data",
                    "Mean wait for the next batch.",
                    Query(expr=mean("samite_data_wait_duration_seconds", "samite_run_name", STAGE), legend="{{samite_run_name}}"),
                    unit="s",
                ),
                lines(
                    "Tensor cores",
                    "Share of time in which a tensor pipe was busy, from DCGM's profiling fields.",
                    Query(expr="avg by (Hostname) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE)", legend="{{Hostname}}"),
                    unit="percentunit",
                    needs=Needs.OUTSIDE,
                ),
                lines(
                    "Memory bandwidth",
                    "Share of time in which device memory was busy, from DCGM.",
                    Query(expr="avg by (Hostname) (DCGM_FI_PROF_DRAM_ACTIVE)", legend="{{Hostname}}"),
                    unit="percentunit",
                    needs=Needs.OUTSIDE,
                ),
            ),
        ),
    ),
)
