"""NodeBlame: what is held against one node of the cluster, shared by all runs. Cluster-scoped, named like the node.

The operator writes `status`; a person excludes a node by `spec.exclude`, and trusts it again by deleting the object: then strikes and quarantine are
forgotten. Strikes halve with every half-life; the rules that add them are `samite.lifecycle.blame`.
"""

from typing import Annotated, Literal

from pydantic import Field

from samite.spec.base import NonNegativeFloat, PositiveFloat, ShortText, SpecModel

Moment = Annotated[str, Field(max_length=40, pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|[+-][0-9]{2}:[0-9]{2})$")]
"""A time, RFC 3339."""

MAX_EVIDENCE = 32


class NodeBlameSpec(SpecModel):
    """What a person decides about the node."""

    exclude: bool = False
    """True: no run starts here until this is false again, whatever the strikes. Default false."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """Why, for the next person."""
    by: Annotated[str, Field(max_length=253)] = ""
    """Who says so."""


class Strike(SpecModel):
    """One piece of evidence against the node."""

    kind: ShortText
    """What was seen: network flap, minority stack group, straggler, failed preflight, first rank to fail, hardware, lost node, or request."""
    strikes: NonNegativeFloat
    """What it counts. Unit: strikes. 0 for evidence that excludes at once."""
    fact: Annotated[str, Field(max_length=512)]
    """The observation; the same one counts once."""
    at: Moment
    """When it was judged."""
    namespace: Annotated[str, Field(max_length=63)] = ""
    """Namespace of the run that saw it."""
    run: Annotated[str, Field(max_length=63)] = ""
    """The run that saw it."""


class NodeBlameStatus(SpecModel):
    """What the operator holds against the node."""

    state: Literal["Trusted", "Suspect", "Quarantined", "Excluded"] = "Trusted"
    """Trusted: no strikes. Suspect: some. Quarantined: no run starts here until quarantinedUntil. Excluded: a person said so. Default Trusted."""
    strikes: NonNegativeFloat = 0.0
    """Strikes at updatedAt. They halve with every half-life from then on. Unit: strikes."""
    half_life_seconds: PositiveFloat = 604_800.0
    """Time in which strikes halve. Unit: seconds. Default 604800, seven days."""
    updated_at: Moment | None = None
    """When strikes was computed."""
    quarantined_until: Moment | None = None
    """End of the quarantine. Left out: none."""
    reason: Annotated[str, Field(max_length=1024)] = ""
    """What decided, with the number."""
    last_flap_at: Moment | None = None
    """When the network flapped last; a second time within five minutes quarantines."""
    evidence: Annotated[tuple[Strike, ...], Field(max_length=MAX_EVIDENCE, strict=False)] = ()
    """The newest evidence, oldest first."""


class NodeBlame(SpecModel):
    """What is held against one node of the cluster. Its name is the node's. Delete it to trust the node again."""

    api_version: Literal["samite.dev/v1alpha1"]
    """Version of this document's format: samite.dev/v1alpha1."""
    kind: Literal["NodeBlame"]
    """Always NodeBlame."""
    spec: NodeBlameSpec = NodeBlameSpec.defaults()
    """What a person decides."""
    status: NodeBlameStatus = NodeBlameStatus.defaults()
    """What the operator holds against the node."""
