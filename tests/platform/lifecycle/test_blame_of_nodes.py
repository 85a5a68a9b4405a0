"""Strikes, quarantine, half-life, expiry, and the cap."""

import pytest

from samite.lifecycle import blame as b
from samite.lifecycle.plan import NodePolicy

POLICY = NodePolicy()
DAY = 86400.0


def strike(blame=(), *, node: str = "n1", weak: b.Weak = b.Weak.FIRST_TO_FAIL, fact: str = "f", pool: int = 100, now_s: float = 0.0):
    return b.strike(blame, node=node, weak=weak, fact=fact, pool=pool, policy=POLICY, now_s=now_s)


@pytest.mark.parametrize(
    ("weak", "needed"),
    [(b.Weak.FIRST_TO_FAIL, 6), (b.Weak.STRAGGLER, 6), (b.Weak.MINORITY_STACK, 3), (b.Weak.PREFLIGHT, 2)],
)
def test_weak_evidence_excludes_after_three_strikes(weak: b.Weak, needed: int):
    blame: tuple = ()
    for count in range(1, needed + 1):
        verdict = strike(blame, weak=weak, fact=f"f{count}")
        blame = verdict.blame
        assert verdict.quarantined is (count == needed)
    assert b.excluded(blame, 0.0) == {"n1"}


def test_two_network_flaps_within_five_minutes_exclude():
    first = strike(weak=b.Weak.NETWORK_FLAP, fact="a", now_s=0.0)
    assert strike(first.blame, weak=b.Weak.NETWORK_FLAP, fact="b", now_s=300.0).quarantined
    assert not strike(first.blame, weak=b.Weak.NETWORK_FLAP, fact="b", now_s=301.0).quarantined


def test_the_same_fact_counts_once():
    first = strike(fact="same")
    assert strike(first.blame, fact="same").blame == first.blame


def test_strikes_halve_in_seven_days():
    entry = strike(weak=b.Weak.PREFLIGHT).blame[0]
    assert b.strikes_now(entry, POLICY, 7 * DAY) == pytest.approx(1.0)
    assert b.strikes_now(entry, POLICY, 14 * DAY) == pytest.approx(0.5)


def test_strong_evidence_excludes_at_once_and_ends_after_a_day():
    verdict = b.quarantine((), node="n1", reason="XID 79", pool=100, policy=POLICY, now_s=0.0)
    assert verdict.quarantined
    assert b.excluded(verdict.blame, DAY - 1.0) == {"n1"}
    assert b.excluded(verdict.blame, DAY + 1.0) == frozenset()


@pytest.mark.parametrize(("pool", "limit"), [(2, 1), (49, 1), (100, 2), (1250, 25)])
def test_no_more_than_two_percent_of_a_pool_but_always_one(pool: int, limit: int):
    blame: tuple = ()
    for number in range(limit + 3):
        verdict = b.quarantine(blame, node=f"n{number}", reason="x", pool=pool, policy=POLICY, now_s=float(number) * 1000.0)
        blame = verdict.blame
    assert len(b.excluded(blame, 5000.0)) == limit
    assert "maxCordonFraction" in verdict.capped


def test_a_person_may_exclude_beyond_the_cap():
    blame = b.quarantine((), node="n0", reason="x", pool=2, policy=POLICY, now_s=0.0).blame
    assert not b.quarantine(blame, node="n1", reason="x", pool=2, policy=POLICY, now_s=0.0).quarantined
    assert b.quarantine(blame, node="n1", reason="x", pool=2, policy=POLICY, now_s=0.0, by_request=True).quarantined


def test_two_nodes_of_one_rack_within_ten_minutes_point_at_the_switch():
    racks = {"n0": "r1", "n1": "r1", "n2": "r2"}
    blame = b.quarantine((), node="n0", reason="x", pool=1000, policy=POLICY, now_s=0.0, racks=racks).blame
    same = b.quarantine(blame, node="n1", reason="x", pool=1000, policy=POLICY, now_s=599.0, racks=racks)
    assert "switch" in same.capped
    assert b.quarantine(blame, node="n2", reason="x", pool=1000, policy=POLICY, now_s=1.0, racks=racks).quarantined
    assert b.quarantine(blame, node="n1", reason="x", pool=1000, policy=POLICY, now_s=601.0, racks=racks).quarantined


def test_a_released_node_starts_clean():
    blame = b.quarantine((), node="n0", reason="x", pool=9, policy=POLICY, now_s=0.0).blame
    assert b.release(blame, "n0") == ()


def test_old_blame_is_forgotten():
    blame: tuple = ()
    for number in range(400):
        blame = strike(blame, node=f"n{number}", fact="f").blame
    assert len(b.pruned(blame, POLICY, 0.0)) == 256
    assert b.pruned(blame, POLICY, 60 * DAY) == ()
