"""The brain of a run: phases, failure classes, evidence, the restart ladder, budgets, gates and hand-overs, as pure functions over values.

Called by every engine in the same loop, once a turn:

    memory = Memory() or what was stored
    while True:
        observed = look()                                   # Observed: unknown is None
        decision = decide(plan, observed, memory, now_s)    # pure
        store(decision.memory)                              # atomically, and before anything is applied
        append(decision.events); publish(decision.status)
        for action in decision.actions: apply(action)       # each is safe to repeat
        memory = decision.memory

It knows nothing of Ray, Kubernetes, files, threads or clocks.
"""

from samite.lifecycle.actions import (
    DESTRUCTIVE,
    Action,
    CollectDiagnostics,
    CommitHandover,
    EvaluateGate,
    Finish,
    GateQuestion,
    KillRanks,
    ProbeStorage,
    QuarantineCheckpoints,
    ReleaseCluster,
    ReleaseWorkers,
    ReplaceNode,
    RequestCheckpoint,
    StartCluster,
    StopCluster,
    StopSubmission,
    Submit,
    VerifyCheckpoint,
)
from samite.lifecycle.alarms import NumericAlarm
from samite.lifecycle.decide import Decision, Event, decide
from samite.lifecycle.evidence import Evidence, FactClass, Source
from samite.lifecycle.memory import Memory
from samite.lifecycle.observed import (
    AttemptObserved,
    CheckpointObserved,
    CheckpointsObserved,
    ClusterObserved,
    ClusterState,
    DecayUnderflow,
    GateMeasured,
    HandoverFound,
    JobStatus,
    NodeFact,
    NodeObserved,
    NodeSays,
    Observed,
    ProcessState,
    RankObserved,
    StorageObserved,
)
from samite.lifecycle.people import Request, RequestKind
from samite.lifecycle.phases import TERMINAL, FailureClass, Level, Phase
from samite.lifecycle.plan import RunPlan, StagePlan
from samite.lifecycle.status import Condition, ConditionStatus, Status

__all__ = [
    "DESTRUCTIVE",
    "TERMINAL",
    "Action",
    "AttemptObserved",
    "CheckpointObserved",
    "CheckpointsObserved",
    "ClusterObserved",
    "ClusterState",
    "CollectDiagnostics",
    "CommitHandover",
    "Condition",
    "ConditionStatus",
    "DecayUnderflow",
    "Decision",
    "EvaluateGate",
    "Event",
    "Evidence",
    "FactClass",
    "FailureClass",
    "Finish",
    "GateMeasured",
    "GateQuestion",
    "HandoverFound",
    "JobStatus",
    "KillRanks",
    "Level",
    "Memory",
    "NodeFact",
    "NodeObserved",
    "NodeSays",
    "NumericAlarm",
    "Observed",
    "Phase",
    "ProbeStorage",
    "ProcessState",
    "QuarantineCheckpoints",
    "RankObserved",
    "ReleaseCluster",
    "ReleaseWorkers",
    "ReplaceNode",
    "Request",
    "RequestCheckpoint",
    "RequestKind",
    "RunPlan",
    "Source",
    "StagePlan",
    "StartCluster",
    "Status",
    "StopCluster",
    "StopSubmission",
    "StorageObserved",
    "Submit",
    "VerifyCheckpoint",
    "decide",
]
