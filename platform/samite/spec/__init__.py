"""The TrainingRun document: models, loading with line numbers, rules, explanation and schema.

    run.yaml ─ document.py ─ models (run.py, stages.py, ...) ─ rules.py ─ support.py ─> LoadedRun
               lines, scalars  one field at a time              several     this version
                                                                fields

Names are loaded on first use, because `samite.spec.attempt` must not cost the import of pydantic.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samite.spec.load import LoadedRun, load_run
    from samite.spec.run import TrainingRun

__all__ = ["LoadedRun", "TrainingRun", "load_run"]


def __getattr__(name: str) -> Any:
    if name == "TrainingRun":
        from samite.spec.run import TrainingRun

        return TrainingRun
    if name in {"LoadedRun", "load_run"}:
        from samite.spec import load

        return getattr(load, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
