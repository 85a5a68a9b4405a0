"""What is right in a document, but not possible with this version or on this machine. Each limit says so, and what to do instead.

Unlike samite.spec.rules these are no part of the format: a later version lifts them, so they have no CEL text.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from samite.spec.cluster_rules import is_on_cluster
from samite.spec.model_fields import MODEL_FIELDS, NOT_OVERRIDABLE, override_errors
from samite.spec.rules import Document, Finding, part, stages
from samite.spec.support_local import local_limits
from samite.spec.yaml_tree import Path as YamlPath

TRAINED_KINDS = ("Pretrain", "Extend", "Anneal")
QUICKSTART = "builtin:quickstart"
QUICKSTART_SOURCES = ("text", "digits")
CORPUS_FILE = "corpus.json"
_NOT_YET = "not supported by this version"


def check_support(filled: Document, folder: Path) -> list[Finding]:
    """Every limit that a filled document runs into. Relative paths start from `folder`."""
    checks = (
        _engine(filled),
        _kinds(filled),
        _layouts(filled),
        _overrides(filled),
        _handovers(filled),
        _storage(filled),
        _preflight(filled),
        () if is_on_cluster(filled) else local_limits(filled),
        _corpora(filled, None if is_on_cluster(filled) else folder),
    )
    return [finding for check in checks for finding in check]


def _engine(document: Document) -> Iterator[Finding]:
    if part(document, "spec", "engine") == "RayJob":
        hint = "write engine: RayCluster"
        yield Finding(path=("spec", "engine"), wanted="RayCluster or Local", found=f"RayJob, which is {_NOT_YET}", hint=hint)


def _kinds(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        kind = stage.get("kind")
        if kind is not None and kind not in TRAINED_KINDS:
            wanted = f"one of {', '.join(TRAINED_KINDS)}"
            path = ("spec", "stages", index, "kind")
            yield Finding(path=path, wanted=wanted, found=f"{kind}, which is {_NOT_YET}", hint="remove this stage")


def _layouts(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        for axis in ("tensor", "pipeline", "context", "expert"):
            size = part(stage, "parallel", axis)
            if size is not None and size != 1:
                path = ("spec", "stages", index, "parallel", axis)
                hint = f"remove {axis}: this version shards the parameters over data-parallel ranks"
                yield Finding(
                    path=path,
                    wanted="1",
                    found=f"{size}, which is {_NOT_YET}",
                    hint=hint,
                )


def _overrides(document: Document) -> Iterator[Finding]:
    preset, overrides = part(document, "spec", "model", "preset"), part(document, "spec", "model", "overrides")
    if not isinstance(overrides, dict):
        return
    path = ("spec", "model", "overrides")
    for key in overrides:
        if key in NOT_OVERRIDABLE:
            yield Finding(
                path=(*path, key), wanted=f"{NOT_OVERRIDABLE[key]} instead", found=f"{key} here", hint=f"move it to {NOT_OVERRIDABLE[key]}"
            )
        elif key not in MODEL_FIELDS:
            yield Finding(
                path=(*path, key), wanted="a field of the model's configuration", found=f"the unknown key {key}", hint=_similar(key)
            )
    for key, wanted, found in override_errors(preset or "", overrides):
        yield Finding(path=(*path, key), wanted=wanted, found=found)


def _similar(key: str) -> str:
    import re
    from difflib import get_close_matches

    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).lower()
    close = get_close_matches(plain, MODEL_FIELDS, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else "`samite explain model.overrides` lists them"


def _handovers(document: Document) -> Iterator[Finding]:
    for index, stage in stages(document):
        for state, action in (part(stage, "handover") or {}).items():
            if action == "Rescale" and state != "lrSchedule":
                path = ("spec", "stages", index, "handover", state)
                yield Finding(
                    path=path,
                    wanted="Carry or Reset; only lrSchedule can be rescaled",
                    found=f"Rescale, which is {_NOT_YET}",
                    hint="write Carry",
                )


def _storage(document: Document) -> Iterator[Finding]:
    checkpoint = part(document, "spec", "checkpoint") or {}
    if (checkpoint.get("uri") or "").startswith("memory://"):
        hint = "leave uri out for the run's own folder, or write file:///absolute/folder"
        yield Finding(
            path=("spec", "checkpoint", "uri"),
            wanted="a storage that outlives a process",
            found="memory://, which every process has for itself",
            hint=hint,
        )
    if "loadFrom" in checkpoint:
        found = f"a checkpoint of another run, which is {_NOT_YET}"
        yield Finding(
            path=("spec", "checkpoint", "loadFrom"),
            wanted="fresh weights",
            found=found,
            hint="remove loadFrom, and the first stage's handover",
        )


def _preflight(document: Document) -> Iterator[Finding]:
    preflight = part(document, "spec", "nodes", "preflight")
    if preflight not in {None, "None"}:
        path = ("spec", "nodes", "preflight")
        yield Finding(path=path, wanted="None", found=f"{preflight}, which is {_NOT_YET}", hint="remove it")


def _corpora(document: Document, folder: Path | None) -> Iterator[Finding]:
    """Corpora that are not there. `folder` is None in a cluster: paths are those of the pods then."""
    places: list[tuple[YamlPath, Any]] = [(("spec", "data"), part(document, "spec", "data"))]
    places += [(("spec", "stages", index, "data"), stage.get("data")) for index, stage in stages(document)]
    run_uri = part(document, "spec", "data", "uri")
    for path, data in places:
        if not isinstance(data, dict):
            continue
        uri = data.get("uri")
        if isinstance(uri, str) and (problem := _corpus_problem(uri, folder)) is not None:
            yield Finding(path=(*path, "uri"), wanted=problem[0], found=problem[1], hint=problem[2])
            continue
        sources = _sources_of(uri if uri is not None else run_uri, folder)
        for position, entry in enumerate(data.get("mixture") or []):
            source = (entry or {}).get("source")
            if sources and source is not None and source not in sources:
                yield Finding(
                    path=(*path, "mixture", position, "source"), wanted=f"a source of the corpus: {', '.join(sources)}", found=f'"{source}"'
                )


def _corpus_problem(uri: str, folder: Path | None) -> tuple[str, str, str] | None:
    """(wanted, found, hint) if no corpus can be at `uri`. Remote URIs are looked at when the run starts."""
    if uri.startswith("builtin:"):
        return None if uri == QUICKSTART else (QUICKSTART, f'"{uri}"', f"write {QUICKSTART}")
    path = local_path(uri, folder)
    if path is None:
        return None
    wanted = "the folder of a prepared corpus"
    if not path.exists():
        return wanted, f"nothing at {path}", f"{_prepare(path)}; or write {QUICKSTART}"
    if not path.is_dir():
        return wanted, f"{path}, which is a file", f"name the folder that holds {CORPUS_FILE}"
    if not (path / CORPUS_FILE).is_file():
        return wanted, f"{path}, which has no {CORPUS_FILE}", _prepare(path)
    return None


def _prepare(path: Path) -> str:
    """The command that makes a corpus at `path`."""
    return f"run: samite data prepare --out {shlex.quote(str(path))}"


def local_path(uri: str, folder: Path | None) -> Path | None:
    """The path on this machine that `uri` means; None if it is remote or built in, or if there is no `folder` here to start from."""
    if folder is None:
        return None
    if uri.startswith("file://"):
        return Path(urlsplit(uri).path)
    if "://" in uri or uri.startswith("builtin:"):
        return None
    return (folder / Path(uri).expanduser()).absolute()


def _sources_of(uri: Any, folder: Path | None) -> tuple[str, ...]:
    """Names of the sources of a corpus on this machine; empty if they cannot be known here."""
    if uri == QUICKSTART:
        return QUICKSTART_SOURCES
    path = local_path(uri, folder) if isinstance(uri, str) else None
    if path is None:
        return ()
    import json

    try:
        return tuple(json.loads((path / CORPUS_FILE).read_text(encoding="utf-8"))["sources"])
    except (OSError, ValueError, KeyError, TypeError):
        return ()
