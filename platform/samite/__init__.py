"""Samite's control plane: spec, lifecycle, engines, checkpoint catalogue, telemetry and CLI.

Light by rule: nothing here imports torch, ray, triton or kopf, so `pip install samite` stays small and `samite --help` answers at once.
"""

__version__ = "0.1.0"
