"""Writes every generated file: `python -m samite.dashboards.generate` in the repository (needs the extra `dashboards`).

platform/samite/dashboards/generated/<uid>.json   the boards, in the wheel
helm/samite/dashboards/<uid>.json                 the same for the chart
helm/samite/files/alerts.yaml                     the alert rules for the chart, and for any Prometheus
"""

from pathlib import Path

from samite.dashboards.boards import BOARDS
from samite.dashboards.rendering import render
from samite.dashboards.rules import rule_groups, to_yaml

_HEAD = "# All alert rules. Written by `python -m samite.dashboards.generate`; edit platform/samite/dashboards/alerts, not this file.\n"


def generated(root: Path) -> dict[Path, str]:
    """Every generated file below the repository `root` with its text."""
    texts = {board.uid: render(board, BOARDS) for board in BOARDS}
    places = (root / "platform" / "samite" / "dashboards" / "generated", root / "helm" / "samite" / "dashboards")
    found = {place / f"{uid}.json": text for place in places for uid, text in texts.items()}
    found[root / "helm" / "samite" / "files" / "alerts.yaml"] = _HEAD + to_yaml(rule_groups())
    return found


def main() -> None:
    """Write them, and remove boards that are no more."""
    files = generated(Path.cwd())
    for file, text in files.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for folder in {file.parent for file in files if file.suffix == ".json"}:
        for stray in set(folder.glob("*.json")) - set(files):
            stray.unlink()


if __name__ == "__main__":
    main()
