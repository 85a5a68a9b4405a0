"""Documents from JSON lines and from image folders; what is wrong with a record is said with file and line, for all of them at once.

    {"text": "..."}                                            a text
    {"image": "a.png", "caption": "..."}                       an image, then its caption ("file_name" and "text" are understood too)
    {"text": "left <image> right", "images": ["a.png"]}        images in the middle of a text

Image paths are relative to the file that names them.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samite_workloads.data.documents import Document, Picture, Skipped
from samite_workloads.data.files import unreadable_reason
from samite_workloads.data.layout import CorpusError, sha256_of
from samite_workloads.data.pictures import DEFAULT_MAX_PIXELS, IMAGE_SUFFIXES, UnusableImageError, load_picture

MAX_LINE_BYTES = 64 << 20
IMAGE_MARK = "<image>"
CAPTION_FILES = ("captions.jsonl", "metadata.jsonl")
_NUM_PROBLEMS = 10


class JsonLines:
    """Source over one .jsonl file."""

    def __init__(self, path: Path, *, name: str, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
        self.name = name
        self.path = path
        self.max_pixels = max_pixels
        self.description = f"records of {path}"

    def fingerprint(self) -> dict[str, Any]:
        """The file's bytes and those of every image it names."""
        digest = hashlib.sha256(_content_hash(self.path).encode())
        for _, line in _lines(self.path):
            for image in _named_images(line):
                digest.update(_content_hash(self.path.parent / image).encode())
        return {"kind": "jsonl", "content": digest.hexdigest(), "max_pixels": self.max_pixels}

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """One document per line. Raises CorpusError with the first ten bad lines of the file."""
        problems: list[str] = []
        for number, line in _lines(self.path):
            place = f"{self.path}:{number}"
            if line is None:
                skipped.add(f"line longer than {MAX_LINE_BYTES >> 20} MiB", place)
                continue
            try:
                parts = _parts(line, self.path.parent, self.max_pixels)
            except (UnusableImageError, ValueError) as error:
                problems.append(f"{place}: {error}")
                if len(problems) == _NUM_PROBLEMS:
                    break
                continue
            if not problems:
                yield Document(parts=parts, origin=place)
        if problems:
            raise CorpusError("\n".join(problems))


class CaptionedImages:
    """Source over a folder of images, each with its caption in a .txt file of the same name. Images without one are left out and counted."""

    def __init__(self, path: Path, *, name: str, max_pixels: int = DEFAULT_MAX_PIXELS) -> None:
        self.name = name
        self.path = path
        self.max_pixels = max_pixels
        self.description = f"images with captions of {path}"

    def fingerprint(self) -> dict[str, Any]:
        """Names and contents of images and captions."""
        digest = hashlib.sha256()
        for image in self._images():
            caption = image.with_suffix(".txt")
            entry = f"{image.relative_to(self.path)}\0{_content_hash(image)}\0{_content_hash(caption)}\0"
            digest.update(entry.encode("utf-8", "surrogateescape"))
        return {"kind": "captioned_images", "files": digest.hexdigest(), "max_pixels": self.max_pixels}

    def documents(self, skipped: Skipped) -> Iterator[Document]:
        """Image, then caption, in order of the paths."""
        problems: list[str] = []
        for image in self._images():
            caption = image.with_suffix(".txt")
            reason = unreadable_reason(caption) if caption.exists() else "image without a caption"
            if reason is not None:
                skipped.add(reason, str(image))
                continue
            try:
                picture = load_picture(image, self.max_pixels)
            except UnusableImageError as error:
                problems.append(str(error))
                if len(problems) == _NUM_PROBLEMS:
                    break
                continue
            if not problems:
                yield Document(parts=(picture, caption.read_text(encoding="utf-8-sig").strip()), origin=str(image))
        if problems:
            raise CorpusError("\n".join(problems))

    def _images(self) -> list[Path]:
        found = [path for path in self.path.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file()]
        return sorted(found, key=lambda path: path.relative_to(self.path).parts)


def _lines(path: Path) -> Iterator[tuple[int, bytes | None]]:
    """Lines that are not blank, with their 1-based numbers; None in the place of one that is too long to hold."""
    try:
        stream = path.open("rb")
    except OSError as error:
        raise CorpusError(f"{path}: cannot read: {error.strerror or error}") from error
    with stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES):
            number += 1
            if len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := stream.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield number, None
            elif line.strip():
                yield number, line


def _parts(line: bytes, folder: Path, max_pixels: int) -> tuple[str | Picture, ...]:
    """The parts of one record. Raises ValueError or UnusableImageError saying what was wanted and found."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise ValueError("not JSON that can be read: nested too deeply") from error
    if not isinstance(record, dict):
        raise ValueError(f"wanted a JSON object, found {type(record).__name__}")
    image = record.get("image", record.get("file_name"))
    if image is not None:
        caption = _text(record, "caption" if "caption" in record else "text")
        return (load_picture(folder / _path(image), max_pixels), caption)
    text = _text(record, "text")
    images = record.get("images", [])
    if not isinstance(images, list):
        raise ValueError(f'"images": wanted a list of paths, found {type(images).__name__}')
    if not images:
        return (text,)
    around = text.split(IMAGE_MARK)
    if len(around) != len(images) + 1:
        raise ValueError(f"{len(images)} images, but the text has {IMAGE_MARK} {len(around) - 1} times; wanted one for each")
    parts: list[str | Picture] = [around[0]]
    for path, following in zip(images, around[1:], strict=True):
        parts += [load_picture(folder / _path(path), max_pixels), following]
    return tuple(part for part in parts if part != "")


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        found = "no such key" if key not in record else type(value).__name__
        keys = ", ".join(sorted(record)[:8]) or "none"
        raise ValueError(f'"{key}": wanted a string, found {found} (keys: {keys})')
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f'"{key}": half of a surrogate pair at character {error.start}; it is not text') from error
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError(f"image: wanted a path, found {value!r}")
    return value


def _named_images(line: bytes | None) -> list[str]:
    try:
        record = json.loads(line or b"null")
    except (ValueError, RecursionError):
        return []  # said properly when the documents are read
    if not isinstance(record, dict):
        return []
    named = [record.get("image", record.get("file_name")), *(record["images"] if isinstance(record.get("images"), list) else [])]
    return [name for name in named if isinstance(name, str) and "\0" not in name]


def _content_hash(path: Path) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        return type(error).__name__
