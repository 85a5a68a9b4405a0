"""The report in a real browser, where one is installed: the script runs under the page's own policy and finds its data."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from samite.report import build_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
]

pytestmark = [
    pytest.mark.network_tools,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
    pytest.mark.timeout(120),
]


def browse(page: Path, profile: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    # It writes crash settings below HOME whatever its profile is.
    environment = {**os.environ, "HOME": str(profile)}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True, env=environment)


@pytest.fixture(scope="module")
def page(whole_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(build_report(whole_run), encoding="utf-8")
    return path


def test_the_script_runs_under_the_pages_own_policy_without_an_error(page: Path, tmp_path: Path):
    done = browse(page, tmp_path, "--dump-dom")
    assert 'id="event-filters"' in done.stdout
    assert not re.search(r'id="event-filters" hidden|hidden="" id="event-filters"', done.stdout)
    assert done.stdout.count('class="reading"') >= 13
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line or "Content Security Policy" in line]


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (500, "dark")])
def test_nothing_sticks_out_sideways_and_the_picture_is_not_blank(page: Path, tmp_path: Path, width: int, theme: str):
    from PIL import Image

    picture = tmp_path / "report.png"
    flags = [f"--screenshot={picture}", f"--window-size={width},1400", "--hide-scrollbars"]
    if theme == "dark":
        flags += ["--blink-settings=preferredColorScheme=0"]
    browse(page, tmp_path / "profile", *flags)
    image = Image.open(picture).convert("RGB")
    ground = image.getpixel((2, 700))
    assert (sum(ground) < 150) == (theme == "dark")
    assert len(image.getcolors(maxcolors=1 << 24)) > 500
    right_edge = {image.getpixel((image.width - 2, y)) for y in range(0, image.height, 3)}
    assert all(max(abs(a - b) for a, b in zip(pixel, ground, strict=True)) <= 4 for pixel in right_edge)
