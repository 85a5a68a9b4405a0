"""kubectl for tests: strings out, documents in, errors that carry what kubectl said."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any


class KubectlError(RuntimeError):
    """kubectl ended with an error; the text is its own."""


@dataclass(frozen=True)
class Kubectl:
    """One kubectl, one kubeconfig, and a namespace if one is set."""

    binary: Path
    kubeconfig: Path
    namespace: str | None = None

    def __call__(self, *words: str, stdin: str | None = None, limit_s: float = 60, check: bool = True) -> str:
        """Run kubectl; its standard output. KubectlError when it fails (with `check=False` the output, errors included, is returned)."""
        command = [str(self.binary), f"--kubeconfig={self.kubeconfig}", *(["-n", self.namespace] if self.namespace else []), *words]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise KubectlError(f"kubectl {' '.join(words)}: no answer within {limit_s:.0f} s") from None
        if done.returncode and check:
            raise KubectlError(f"kubectl {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout if check else done.stdout + done.stderr

    def within(self, namespace: str) -> "Kubectl":
        """The same for another namespace."""
        return replace(self, namespace=namespace)

    def get(self, *words: str) -> dict[str, Any]:
        """`kubectl get ... -o json`, parsed."""
        found: dict[str, Any] = json.loads(self("get", *words, "-o", "json"))
        return found

    def items(self, *words: str) -> list[dict[str, Any]]:
        """The items of a list."""
        found: list[dict[str, Any]] = self.get(*words)["items"]
        return found

    def apply(self, *documents: dict[str, Any] | Path, limit_s: float = 60) -> str:
        """Server-side apply of documents or files; takes fields over from other managers."""
        words = ["apply", "--server-side", "--force-conflicts"]
        for document in documents:
            if isinstance(document, Path):
                words += ["-f", str(document)]
        inline: Sequence[Any] = [one for one in documents if not isinstance(one, Path)]
        if not inline:
            return self(*words, limit_s=limit_s)
        listed = {"apiVersion": "v1", "kind": "List", "items": list(inline)}
        return self(*words, "-f", "-", stdin=json.dumps(listed), limit_s=limit_s)
