"""Where Midline keeps things on this machine. Light: imports no torch.

``MIDLINE_CACHE_DIR`` and ``MIDLINE_STATE_DIR`` override the platform's folders; tests and CI use them.
"""

import os
from pathlib import Path

import platformdirs

_APP = "midline"


def cache_dir() -> Path:
    """Folder for what can be downloaded or computed again."""
    override = os.environ.get("MIDLINE_CACHE_DIR")
    return absolute_path(override) if override else Path(platformdirs.user_cache_dir(_APP, appauthor=False))


def state_dir() -> Path:
    """Folder for the service's registration, locks and logs; private to the user."""
    override = os.environ.get("MIDLINE_STATE_DIR")
    return absolute_path(override) if override else Path(platformdirs.user_state_dir(_APP, appauthor=False))


def models_dir() -> Path:
    """Folder of downloaded models."""
    return cache_dir() / "models"


def config_file() -> Path:
    """The user's settings file (TOML), which need not exist."""
    override = os.environ.get("MIDLINE_CONFIG")
    default = Path(platformdirs.user_config_dir(_APP, appauthor=False), "config.toml")
    return absolute_path(override) if override else default


def absolute_path(path: str) -> Path:
    """What a user typed, as a path that holds in every working folder; ``~`` is the home folder."""
    return Path(os.path.expanduser(path)).absolute()  # unlike Path.expanduser it bears users that do not exist
