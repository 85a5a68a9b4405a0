"""What `checkpoint.py` measures on all ranks at once: seconds, processor seconds, memory, the stall of training, planning; and how it is told."""

import resource
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

WORLD = 4
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(slots=True)
class Figures:
    """One engine's rounds."""

    seconds: list[float] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)
    """Of all ranks together."""
    extra_mib: list[float] = field(default_factory=list)
    """The rank that needed most, above what it held before."""


def timed(work: Callable[[], object]) -> tuple[float, float, float]:
    """Seconds until every rank is through, processor seconds of all ranks, and MiB by which the largest rank grew meanwhile, at its peak."""
    import torch
    import torch.distributed as dist

    dist.barrier()
    CLEAR.write_text("5")  # the peak begins anew
    held_kib = _status("VmRSS")
    began_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    work()
    after = resource.getrusage(resource.RUSAGE_SELF)
    grown = torch.tensor((_status("VmHWM") - held_kib) / 1024)
    dist.barrier()
    seconds = time.perf_counter() - began_s
    processor_s = torch.tensor(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    dist.all_reduce(processor_s)
    dist.all_reduce(grown, op=dist.ReduceOp.MAX)
    return seconds, float(processor_s), float(grown)


def rounds(
    engines: dict[str, Callable[[int], object]], count: int, *, after: Callable[[str, int], None] = lambda *_: None
) -> dict[str, Figures]:
    """Each engine once a round, in changing order; the first two rounds are a warm-up, in which server and windows settle."""
    found = {name: Figures() for name in engines}
    names = list(engines)
    for number in range(count + (2 if count else 1)):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            seconds, processor_s, extra_mib = timed(lambda name=name, number=number: engines[name](number))
            if number > 1:
                found[name].seconds.append(seconds)
                found[name].processor_s.append(processor_s)
                found[name].extra_mib.append(extra_mib)
            after(name, number)
    return found


def report(what: str, found: dict[str, Figures], gib: float) -> None:
    """One line an engine: MiB/s, processor seconds a GiB, extra memory, and its time by that of ours in the same round."""
    columns = [name for name in found if name.startswith("ours")]
    if not columns:
        return
    say(f"\n{what}, {gib:.2f} GiB, medians of {len(found[columns[0]].seconds)} rounds")
    say(f"{'':<30}{'MiB/s':>8}{'CPU s/GiB':>11}{'extra MiB':>11}" + "".join(f"{f'time/{name[6:]}':>17}" for name in columns))
    for name, one in found.items():
        ratios = [
            statistics.median(other / own for other, own in zip(one.seconds, found[column].seconds, strict=True)) for column in columns
        ]
        say(
            f"{name:<30}{gib * 1024 / statistics.median(one.seconds):>8.0f}{statistics.median(one.processor_s) / gib:>11.2f}"
            f"{max(one.extra_mib):>11.0f}" + "".join(f"{ratio:>16.2f}x" for ratio in ratios)
        )


def stalls(
    engines: dict[str, Callable[[int], Callable[[], object]]],
    copy_s: Callable[[], float],
    count: int,
    *,
    after: Callable[[str, int], None],
) -> None:
    """Saves that do not wait, each paired with a plain copy on the same ranks; how long training is held up, and when all is stored."""
    import torch
    import torch.distributed as dist

    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in engines}
    for number in range(100, 101 + count):  # the first is a warm-up
        for name, save in engines.items():
            dist.barrier()
            copied_s = copy_s()
            dist.barrier()
            began_s = time.perf_counter()
            finish = save(number)
            stall_s = time.perf_counter() - began_s
            finish()
            mine = torch.tensor([copied_s, stall_s, time.perf_counter() - began_s])
            dist.all_reduce(mine)
            found[name].append(tuple((mine / WORLD).tolist()))
            after(name, number)
    if dist.get_rank():
        return
    say(f"\nstall of training, mean of {WORLD} ranks, medians of {count} rounds")
    say(f"{'':<30}{'stall s':>9}{'copy s':>9}{'stall/copy':>12}{'first':>8}{'stored after s':>16}")
    for name, rows in found.items():
        ratios = [stall_s / copied_s for copied_s, stall_s, _ in rows]
        copied_s, stall_s, whole_s = (statistics.median(row[column] for row in rows[1:]) for column in range(3))
        say(f"{name:<30}{stall_s:>9.3f}{copied_s:>9.3f}{statistics.median(ratios[1:]):>11.2f}x{ratios[0]:>7.1f}x{whole_s:>16.2f}")


def planning(tensors: int, rank: int, size: int) -> None:
    """Processor time on rank 0, and time, of what precedes the copy in a save: first save and those after it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    from samite_workloads.checkpoint.agreement import peers
    from samite_workloads.checkpoint.plan_cache import PlanCache
    from samite_workloads.checkpoint.snapshot import prepare, readiness

    mesh = DeviceMesh("cpu", list(range(size)))
    state = {
        f"model.layers.{number // 10}.experts.{number % 10}.weight": DTensor.from_local(
            torch.ones(16, 8), mesh, [Shard(0)], run_check=False
        )
        for number in range(tensors)
    }
    cache, group = PlanCache(rank=rank, world_size=size, object_bytes=1 << 30), peers(None, rank, size)
    times: list[tuple[float, float]] = []
    for _ in range(12):
        dist.barrier()
        began_s, processor_s = time.perf_counter(), time.thread_time()
        prepared = prepare(1, state, {"cursor": 1}, rank=rank, cache=cache)
        finish = group.begin_gather(readiness(prepared, buffer_free=True).to_bytes())
        times.append((time.perf_counter() - began_s, time.thread_time() - processor_s))
        finish(60.0)
    if rank == 0:
        later = [statistics.median(row[column] for row in times[1:]) * 1e3 for column in range(2)]
        say(f"\nplanning {tensors} tensors a rank: first save {times[0][0] * 1e3:.0f} ms ({times[0][1] * 1e3:.0f} ms of CPU), ")
        say(f"   saves after it {later[0]:.1f} ms ({later[1]:.1f} ms of CPU), the start of the agreement in it")


def copier(state: dict) -> Callable[[], float]:
    """Seconds of a plain copy of this rank's part into memory that is there already: what a snapshot cannot be faster than."""
    import torch

    parts = [local(tensor) for tensor in state.values()]
    places = [torch.zeros_like(part) for part in parts]

    def copy() -> float:
        began_s = time.perf_counter()
        for place, part in zip(places, parts, strict=True):
            place.copy_(part)
        return time.perf_counter() - began_s

    copy()
    return copy


def local(tensor: object) -> object:
    """This rank's part."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def say(text: str) -> None:
    """One line, at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _status(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1])
