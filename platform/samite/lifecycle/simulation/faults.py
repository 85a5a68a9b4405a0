"""What can go wrong in the simulated world. Each fault is a function of the world, as `samite chaos` has them for the real one."""

from samite.lifecycle.simulation.trainer import Trainer


def kill_rank(world: Trainer, number: int) -> None:
    """SIGKILL one rank."""
    job = world.running()
    if job is not None and job.ranks:
        job.ranks[number % len(job.ranks)].alive = False


def stop_rank(world: Trainer, number: int) -> None:
    """SIGSTOP one rank."""
    job = world.running()
    if job is not None and job.ranks:
        job.ranks[number % len(job.ranks)].stopped = True


def put_rank_to_sleep(world: Trainer, number: int) -> None:
    """One rank sleeps inside its training function."""
    job = world.running()
    if job is not None and job.ranks:
        job.ranks[number % len(job.ranks)].asleep = True


def kill_node(world: Trainer, number: int) -> None:
    """Kill a worker node with all its processes."""
    for cluster in world.clusters.values():
        alive = [node for node in cluster.nodes.values() if node.dead_since is None]
        if cluster.gone or not alive:
            continue
        node = alive[number % len(alive)]
        node.dead_since = world.now
        for job in world.jobs.values():
            for rank in job.ranks:
                if job.submit.cluster_id == cluster.cluster_id and rank.node == node.name:
                    rank.alive = False


def kill_head(world: Trainer) -> None:
    """Kill the head; its dashboard falls silent."""
    for cluster in world.clusters.values():
        if not cluster.gone and cluster.head_dead_since is None:
            cluster.head_dead_since = world.now


def kill_driver(world: Trainer, *, leaving_orphans: bool = False) -> None:
    """Kill the driver of the running job. Ray ends its ranks a moment later, unless they are orphans that nobody ends."""
    job = world.running()
    if job is not None:
        started = all(rank.phase for rank in job.ranks)
        job.driver_alive, job.broken_at, job.leaves_orphans = False, world.now, leaving_orphans and started


def silence_dashboard(world: Trainer, seconds: float) -> None:
    """The Ray dashboard answers nobody for a while; training goes on."""
    world.dashboard_silent_until = max(world.dashboard_silent_until, world.now + seconds)


def silence_storage(world: Trainer, seconds: float) -> None:
    """The storage answers nobody for a while; commits wait."""
    world.storage_silent_until = max(world.storage_silent_until, world.now + seconds)


def raise_at(world: Trainer, step: int, failure_class: str = "application") -> None:
    """Rank 0 raises once at `step`."""
    world.raising_at[step] = failure_class


def poison(world: Trainer, window: tuple[int, int]) -> None:
    """The data rows of this window give a NaN, each time."""
    world.poisoned.add(window)


def spike(world: Trainer, window: tuple[int, int]) -> None:
    """The data rows of this window make the loss leave its band, each time; the steps before its last one are taken."""
    world.spiking.add(window)


def announce_preemption(world: Trainer, number: int) -> None:
    """A worker node gets a notice that it will be taken away."""
    for cluster in world.clusters.values():
        alive = [node for node in cluster.nodes.values() if node.dead_since is None]
        if alive and not cluster.gone:
            alive[number % len(alive)].preempted = True


def damage_newest(world: Trainer) -> None:
    """The newest checkpoint no longer verifies; it is quarantined when somebody reads it."""
    if world.checkpoints:
        world.checkpoints[-1].verified = False
        world.quarantined.append(world.checkpoints[-1].checkpoint_id)
