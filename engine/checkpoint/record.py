"""The small JSON file beside a downloaded model that says where it came from and what was verified. Light.

A record is written last, so its presence means a finished download. Reading one costs a few ``stat`` calls:
sizes are compared, hashes are not computed again.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

RECORD_SUFFIX = ".midline.json"


@dataclass(frozen=True)
class RecordedFile:
    """One file of a model, relative to the folder that holds the record."""

    path: str
    size_bytes: int
    digest: str
    """The hash that was verified: ``sha256:…``, or ``git-sha1:…`` for small files of a hub repository."""


@dataclass(frozen=True)
class Record:
    """A finished download."""

    name: str
    source: str
    files: tuple[RecordedFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    def find_damage(self, folder: Path) -> str | None:
        """One clause about the first file that is missing or has another size; None if all is as recorded."""
        for file in self.files:
            try:
                size_bytes = (folder / file.path).stat().st_size
            except FileNotFoundError:
                return f"{folder / file.path} is missing"
            if size_bytes != file.size_bytes:
                return f"{folder / file.path} has {size_bytes} bytes instead of {file.size_bytes}"
        return None


def read_record(path: Path) -> Record | None:
    """The record at ``path``; None if there is none or it cannot be understood (pulling writes it anew)."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        files = tuple(RecordedFile(**file) for file in raw.pop("files"))
        return Record(**raw, files=files)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write ``record`` atomically."""
    write_json_atomically(path, asdict(record))


def write_json_atomically(path: Path, content: object) -> None:
    """Replace ``path`` with ``content`` as JSON; after a crash either the old or the new text is there."""
    partial = path.with_name(path.name + ".new")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
