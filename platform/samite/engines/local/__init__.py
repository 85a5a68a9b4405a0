"""The local engine: one supervisor process for each run; Ray's head and worker nodes are process groups on this machine.

client.py      what the CLI calls: submit, list, ask; starts supervisors and revives dead ones
supervisor.py  the loop: observe, decide, persist, apply
observe.py     facts from files, processes and Ray, gathered without blocking
apply.py       the actions of the lifecycle, done
ray_nodes.py   Ray nodes as process groups, remembered on disk so that a new supervisor adopts them
guard.py       runs inside each node's group; ends it when its supervisor is gone for good
processes.py   process groups, activity and orphans, from /proc
busyness.py    which of them use or lack a processor: the second fact of a hang
folder.py      the run folder: paths, atomic documents, locks and requests
"""
