"""Engines: what observes a run and acts on it. The decisions are made in `samite.lifecycle`, the same for every engine.

local    a supervisor process for each run; Ray head and worker nodes are process groups on this machine
"""
