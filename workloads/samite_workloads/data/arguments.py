"""Source arguments of the command line to sources: `stdlib`, `digits`, `PATH` or `NAME=PATH`."""

import re
from pathlib import Path

from samite.errors import NotFoundError
from samite_workloads.data.digits import DEFAULT_PIXELS, Digits
from samite_workloads.data.documents import Source
from samite_workloads.data.files import TextFiles
from samite_workloads.data.pictures import DEFAULT_MAX_PIXELS, IMAGE_SUFFIXES
from samite_workloads.data.records import CAPTION_FILES, CaptionedImages, JsonLines
from samite_workloads.data.stdlib import DEFAULT_MAX_BYTES, StandardLibrary

BUILT_IN = {"stdlib": "text", "digits": "digits"}
"""Built-in sources, with the names they get unless told otherwise."""


def parse_source(
    argument: str,
    *,
    max_bytes: int = DEFAULT_MAX_BYTES,
    pixels: int = DEFAULT_PIXELS,
    max_image_pixels: int = DEFAULT_MAX_PIXELS,
) -> Source:
    """The source that `argument` names. A path's kind shows in what lies there: a .jsonl file, a folder with captions.jsonl or
    metadata.jsonl, a folder of images with .txt captions, else text. Raises NotFoundError for a path where nothing lies.
    """
    name, separator, place = argument.partition("=")
    # A path may hold a '='; then what precedes it is no plain name, or the whole argument exists as it stands.
    if not separator or "/" in name or Path(argument).exists():
        name, place = "", argument
    if place in BUILT_IN:
        name = name or BUILT_IN[place]
        return StandardLibrary(name=name, max_bytes=max_bytes) if place == "stdlib" else Digits(name=name, pixels=pixels)
    path = Path(place).expanduser()
    if not path.exists():
        raise NotFoundError(f"source {argument!r}: {path} does not exist; wanted stdlib, digits, PATH or NAME=PATH")
    name = name or re.sub(r"[^A-Za-z0-9_.-]+", "-", path.absolute().stem).strip("-.") or "data"
    if path.is_file():
        if path.suffix in {".jsonl", ".ndjson"}:
            return JsonLines(path, name=name, max_pixels=max_image_pixels)
        return TextFiles(path, name=name)
    for caption_file in CAPTION_FILES:
        if (path / caption_file).is_file():
            return JsonLines(path / caption_file, name=name, max_pixels=max_image_pixels)
    if any(file.suffix.lower() in IMAGE_SUFFIXES and file.with_suffix(".txt").is_file() for file in path.rglob("*")):
        return CaptionedImages(path, name=name, max_pixels=max_image_pixels)
    return TextFiles(path, name=name)
