"""Engine `kuberay`: one RayCluster for each stage shape, one Ray submission for each attempt. Called by the operator, never by the CLI.

The same lifecycle as the local engine, with Kubernetes eyes and hands. The operator's loop, one turn of one run:

    engine = engine.KubeRayEngine(
        api,                          # api.KubernetesApi: api_client.connect(), or fake_api.FakeApi in tests
        namespace="team-a",           # one engine for each watched namespace; all calls stay inside it (nodes and CRDs are read cluster-wide)
        token_key=b"...",             # bytes of the chart's operator secret; Ray tokens are derived from it, so no Secret is ever read
        storage=None,                 # sight.StorageOf: (run document) -> Store; None: spec.checkpoint.uri with the operator's own environment
        jobs=None,                    # ray_view.JobsOf: (cluster id, namespace, token) -> RayJobs; None: the head service inside the cluster
        excluded=None,                # () -> frozenset of Kubernetes node names that NodeBlame objects exclude, for every run
        nodes=None,                   # node_watch.NodeWatch, one for the engines of all namespaces
        clock=time.monotonic,         # a clock that never jumps; the wall clock is read once
    )
    run:    the TrainingRun object as the API server gave it (dict: metadata with uid and annotations, spec), with every default filled in
    plan:   RunPlan.from_run(TrainingRun.model_validate(...), uid=metadata.uid)
    memory: lifecycle.Memory of status.memory

    observed = engine.observe(run, plan, memory)                    # ends within 30 s; what did not answer is None
    decision = decide(plan, observed, memory, engine.now_s())       # the clock of Observed.at_s
    ... one status patch, with memory ...
    problems = engine.apply(run, plan, decision.actions, runtime=runtime)   # ends within 30 s; list[ApplyProblem], empty if all went well
    engine.take_events(uid)           # (name, attributes) of what the storage thread did: checkpoints verified, set aside, pruned
    engine.forget(uid)                # the run is gone: ends its storage thread and drops what was seen
    engine.note_pod(pod)              # optional, from a watch on pods: remembers how a container ended even if KubeRay deletes the pod at once
    engine.close()

`observe` and `apply` may be called from many threads; calls for one run exclude each other. `runtime` is a `runtime.Runtime`: images, resources,
pod settings and queue of this run, resolved and pinned by the operator. `ApplyProblem` has `action`, `message` and `permanent`
(True: waiting will not help, for instance a refused combination; tell the user). A turn is worth making each 2 s while a run is active: it costs
one list of pods, one get of the RayCluster, one get of the Lease, and a share of one list of nodes; events are read only while pods do not come up.

Wishes come from the object itself: `spec.suspend`, the annotations `samite.dev/cancel` and `samite.dev/request-<id>` (see `wishes`).
Facts and their sources: see `node_facts`. Ages are measured on `clock` between successful readings; no wall clock of a node is ever compared.
"""
