"""Mixture weights: how many tokens come from each source, realised exactly by credit and not by chance.

Weights become whole numbers once; from then on only integers decide, so every rank and every resume agrees. A source's credit is what it is
owed: its share of all tokens laid out, minus what it has given. The source owed most goes next, so each stays within about one row of its
share at any time.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, inf, lcm
from typing import Any

from samite_workloads.data.layout import CorpusError


def whole_weights(mixture: Any, sources: Sequence[str]) -> dict[str, int]:
    """Smallest whole-number weights of a mixture, by source in name order; sources of weight 0 are left out.

    `mixture` is a mapping source -> weight, or a sequence of mappings or objects with `source` and `weight`; empty means all sources alike.
    Raises CorpusError for unknown or repeated sources, negative weights, and a mixture without any weight.
    """
    pairs = list(_pairs(mixture)) or [(source, 1) for source in sources]
    weights: dict[str, Fraction] = {}
    for source, weight in pairs:
        if source not in sources:
            near = difflib.get_close_matches(source, sources, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise CorpusError(f"mixture: the corpus has no source {source!r}; it has {', '.join(sources)}.{hint}")
        if source in weights:
            raise CorpusError(f"mixture: source {source!r} is named twice; add its weights up in one entry")
        if not 0 <= weight < inf:
            raise CorpusError(f"mixture: the weight of {source!r} is {weight}; wanted a number, 0 or more")
        weights[source] = Fraction(str(weight))
    positive = {source: weight for source, weight in sorted(weights.items()) if weight > 0}
    if not positive:
        raise CorpusError("mixture: every weight is 0; give at least one source a weight above 0")
    scale = lcm(*(weight.denominator for weight in positive.values()))
    whole = {source: int(weight * scale) for source, weight in positive.items()}
    return _reduced(whole)


def owed_most_first(weights: Mapping[str, int], credit: Mapping[str, int]) -> list[str]:
    """Sources by what they are owed, most first; ties go by name. `credit` holds the tokens each has given."""
    total_weight = sum(weights.values())
    total = sum(credit[source] for source in weights)
    return sorted(weights, key=lambda source: (credit[source] * total_weight - weights[source] * total, source))


def _pairs(mixture: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(mixture, Mapping):
        return list(mixture.items())
    return [(entry["source"], entry["weight"]) if isinstance(entry, Mapping) else (entry.source, entry.weight) for entry in mixture]


def _reduced(weights: dict[str, int]) -> dict[str, int]:
    divisor = gcd(*weights.values())
    return {source: weight // divisor for source, weight in weights.items()}
