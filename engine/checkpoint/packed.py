"""Where a model's packed weights are kept. Light; what is in such a file, ``engine.model.native.packed_file`` knows."""

from hashlib import sha256
from pathlib import Path

from engine.paths import cache_dir


def packed_path(model: Path, precision: str) -> Path:
    """The file for a model, which may be a file or a folder, in one precision."""
    return cache_dir() / "packed" / f"{_stem(model)}-{precision}.packed"


def packed_files(model: Path) -> list[Path]:
    """A model's files in all precisions, and what was left of unfinished ones: nothing else needs them."""
    folder = packed_path(model, "").parent
    return [file for file in folder.iterdir() if file.name.startswith(_stem(model))] if folder.is_dir() else []


def _stem(model: Path) -> str:
    return f"{model.stem}-{sha256(str(model.absolute()).encode()).hexdigest()[:12]}"
