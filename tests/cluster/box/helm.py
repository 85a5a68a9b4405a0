"""helm for tests, with the cluster's kubeconfig and folders of its own."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


class HelmError(RuntimeError):
    """helm ended with an error; the text is its own."""


@dataclass(frozen=True)
class Helm:
    """One helm binary, one kubeconfig; `home` takes helm's caches, so that the user's stay untouched."""

    binary: Path
    kubeconfig: Path
    home: Path

    def __call__(self, *words: str, limit_s: float = 180, check: bool = True) -> str:
        """Run helm; its output. HelmError when it fails (with `check=False` the output, errors included, is returned)."""
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        environment |= {f"HELM_{name}_HOME": str(self.home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        try:
            done = subprocess.run([str(self.binary), *words], env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise HelmError(f"helm {' '.join(words)}: no answer within {limit_s:.0f} s") from None
        if done.returncode and check:
            raise HelmError(f"helm {' '.join(words)}: {(done.stderr or done.stdout).strip()}")
        return done.stdout if check else done.stdout + done.stderr
