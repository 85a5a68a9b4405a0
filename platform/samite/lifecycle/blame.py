"""Which nodes are trusted. Strikes with a half-life, quarantine with an end, and a cap so that a bad switch does not empty a pool.

Strong evidence (a hardware fault) excludes at once. Weak evidence adds strikes: network flap 1 (a second one within 5 minutes excludes), minority
stack group 1, straggler with hardware evidence 0.5, failed preflight 2, first rank to fail 0.5. At 3 strikes a node is excluded, for a day unless a
person releases it earlier.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from samite.lifecycle.doubts import BlameMemory
from samite.lifecycle.plan import NodePolicy

FLAP_PAIR_S = 300.0
RACK_PAUSE_S = 600.0
"""No two nodes of one rack within this time without a person: suspect the switch then."""
_SEEN = 8


class Weak(StrEnum):
    """Weak evidence."""

    NETWORK_FLAP = "network flap"
    MINORITY_STACK = "minority stack group"
    STRAGGLER = "straggler"
    PREFLIGHT = "failed preflight"
    FIRST_TO_FAIL = "first rank to fail"


STRIKES: dict[Weak, float] = {
    Weak.NETWORK_FLAP: 1.0,
    Weak.MINORITY_STACK: 1.0,
    Weak.STRAGGLER: 0.5,
    Weak.PREFLIGHT: 2.0,
    Weak.FIRST_TO_FAIL: 0.5,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The new blame list, and whether `node` became excluded by this."""

    blame: tuple[BlameMemory, ...]
    quarantined: bool = False
    capped: str = ""
    """Why a node that deserves it was not excluded; empty otherwise."""


def excluded(blame: Iterable[BlameMemory], now_s: float) -> frozenset[str]:
    """Names of nodes that must not be used now."""
    return frozenset(entry.node for entry in blame if entry.excluded_until_s is not None and entry.excluded_until_s > now_s)


def strikes_now(entry: BlameMemory, policy: NodePolicy, now_s: float) -> float:
    """Strikes of a node, halved for each half-life that has passed."""
    return float(entry.strikes * 0.5 ** (max(0.0, now_s - entry.updated_s) / policy.half_life_s))


def strike(blame: tuple[BlameMemory, ...], *, node: str, weak: Weak, fact: str, pool: int, policy: NodePolicy, now_s: float) -> Verdict:
    """Add weak evidence against `node`. `fact` names the observation: the same one counts once."""
    entry = _entry(blame, node)
    if fact in entry.seen:
        return Verdict(blame=blame)
    twice = weak is Weak.NETWORK_FLAP and entry.last_flap_s is not None and now_s - entry.last_flap_s <= FLAP_PAIR_S
    entry = replace(
        entry,
        strikes=strikes_now(entry, policy, now_s) + STRIKES[weak],
        updated_s=now_s,
        reason=f"{weak}: {fact}",
        seen=(*entry.seen, fact)[-_SEEN:],
        last_flap_s=now_s if weak is Weak.NETWORK_FLAP else entry.last_flap_s,
    )
    blame = _with(blame, entry)
    if entry.strikes >= policy.quarantine_strikes or twice:
        return quarantine(blame, node=node, reason=entry.reason, pool=pool, policy=policy, now_s=now_s)
    return Verdict(blame=blame)


def quarantine(
    blame: tuple[BlameMemory, ...],
    *,
    node: str,
    reason: str,
    pool: int,
    policy: NodePolicy,
    now_s: float,
    racks: dict[str, str] | None = None,
    by_request: bool = False,
) -> Verdict:
    """Exclude `node` until the expiry. Not done when the cap is reached, or a node of the same rack went a moment ago, unless a person asks."""
    if node in excluded(blame, now_s):
        return Verdict(blame=blame)
    if not by_request:
        capped = _capped(blame, node=node, pool=pool, policy=policy, now_s=now_s, racks=racks or {})
        if capped:
            return Verdict(blame=blame, capped=capped)
    entry = replace(_entry(blame, node), excluded_until_s=now_s + policy.expiry_s, updated_s=now_s, reason=reason)
    return Verdict(blame=_with(blame, entry), quarantined=True)


def release(blame: tuple[BlameMemory, ...], node: str) -> tuple[BlameMemory, ...]:
    """Trust `node` again: strikes and exclusion are forgotten."""
    return tuple(entry for entry in blame if entry.node != node)


def pruned(blame: tuple[BlameMemory, ...], policy: NodePolicy, now_s: float) -> tuple[BlameMemory, ...]:
    """Without entries that say nothing any more, at most 256 left: the memory of a long run stays small."""
    alive = tuple(entry for entry in blame if strikes_now(entry, policy, now_s) >= 0.05 or (entry.excluded_until_s or 0.0) > now_s)
    return alive if len(alive) <= 256 else alive[-256:]


def _capped(blame: tuple[BlameMemory, ...], *, node: str, pool: int, policy: NodePolicy, now_s: float, racks: dict[str, str]) -> str:
    out = excluded(blame, now_s)
    limit = max(1, int(policy.max_cordon_fraction * pool))
    if len(out) >= limit:
        return f"{len(out)} of {pool} nodes are excluded already and nodes.maxCordonFraction allows {limit}"
    rack = racks.get(node, "")
    if rack:
        for entry in blame:
            recent = entry.node in out and now_s - entry.updated_s < RACK_PAUSE_S
            if recent and racks.get(entry.node) == rack:
                return f"{entry.node} of the same rack {rack} was excluded {now_s - entry.updated_s:.0f} s ago: suspect the switch"
    return ""


def _entry(blame: tuple[BlameMemory, ...], node: str) -> BlameMemory:
    return next((entry for entry in blame if entry.node == node), BlameMemory(node=node))


def _with(blame: tuple[BlameMemory, ...], entry: BlameMemory) -> tuple[BlameMemory, ...]:
    return (*(old for old in blame if old.node != entry.node), entry)
