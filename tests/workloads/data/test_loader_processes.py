"""The loader in real processes: kill -9 between any two steps, resume in another process, the same bytes."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samite_workloads.data import Corpus

CHILD = """
import hashlib, json, os, sys
from samite_workloads.data import DataCursor, build_loader, open_corpus

folder, cursor_file, world, rank, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
cursor = DataCursor.from_json(json.load(open(cursor_file))) if os.path.exists(cursor_file) else None
loader = build_loader(open_corpus(folder), {"text": 3, "pictures": 1}, 48, rows_per_step=12, rank=rank, world=world, seed=3,
                      micro_rows=2, patch_size=4, cursor=cursor)
for _ in range(count):
    digest = hashlib.sha256()
    for batch in next(loader):
        for tensor in (batch.tokens_T, batch.labels_T, batch.modality_T, batch.cu_seqlens_N1, batch.patches_PD, batch.image_positions_M):
            digest.update(tensor.numpy().tobytes())
    with open(cursor_file + ".new", "w") as stream:
        json.dump(loader.cursor().to_json(), stream)
    os.replace(cursor_file + ".new", cursor_file)
    print(loader.window[0], digest.hexdigest(), flush=True)
loader.close()
"""


def start(corpus: Corpus, cursor: Path, *, world: int = 1, rank: int = 0, count: int, hash_seed: int = 0) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, str(corpus.folder), str(cursor), str(world), str(rank), str(count)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def lines(process: subprocess.Popen) -> list[str]:
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    return output.splitlines()


@pytest.mark.timeout(200)
def test_killed_processes_resume_with_the_same_bytes(corpus: Corpus, tmp_path: Path):
    unbroken = lines(start(corpus, tmp_path / "unbroken", count=30))
    seen: dict[str, str] = {}
    for attempt in range(2):
        process = start(corpus, tmp_path / "cursor", count=1_000_000, hash_seed=attempt + 1)
        assert process.stdout is not None
        for _ in range(5 + 4 * attempt):
            row, digest = process.stdout.readline().split()
            seen[row] = digest
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=30)
        # The cursor on disk may be some steps ahead of what was read from the pipe; those steps count as taken.
    resumed_at = json.loads((tmp_path / "cursor").read_text())["row"]
    expected = dict(line.split() for line in unbroken)
    assert len(seen) >= 10
    assert all(expected[row] == digest for row, digest in seen.items() if row in expected)
    if resumed_at < 30 * 12:
        count = 30 - resumed_at // 12
        assert lines(start(corpus, tmp_path / "cursor", count=count)) == unbroken[-count:]


@pytest.mark.timeout(200)
def test_ranks_in_different_processes_agree_on_the_cursor(corpus: Corpus, tmp_path: Path):
    processes = [start(corpus, tmp_path / str(rank), world=2, rank=rank, count=5, hash_seed=rank) for rank in range(2)]
    digests = [lines(process) for process in processes]
    cursors = {(tmp_path / str(rank)).read_text() for rank in range(2)}
    assert len(cursors) == 1
    assert len({tuple(digest) for digest in digests}) == 2
