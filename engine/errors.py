"""Every error the engine raises for a user. Light: imports nothing.

The text of each is one line that names what was given, what was wrong and what to do::

    MidlineError
    ├── ConfigError              a setting that does not exist or has a bad value
    ├── ModelError
    │   ├── UnknownModelError        a name that is neither in the catalogue nor a path
    │   ├── ModelNotDownloadedError  a catalogue model that is not on this machine yet
    │   ├── CheckpointError          truncated, foreign or unsupported model files
    │   └── DownloadError            network, disk or checksum
    ├── RequestError             a request the engine refuses (HTTP 400)
    └── ServiceError             the engine process cannot be started or reached

Cancellation is not an error: a cancelled request ends with ``FinishReason.CANCELLED``.
"""


class MidlineError(Exception):
    """Base of all errors whose text is meant for a user."""


class ConfigError(MidlineError):
    """A setting that does not exist or whose value is out of range."""


class ModelError(MidlineError):
    """Base of everything wrong with a model's name or files."""


class UnknownModelError(ModelError):
    """The name is neither in the catalogue nor an existing path."""


class ModelNotDownloadedError(ModelError):
    """A model of the catalogue that has not been downloaded yet."""


class CheckpointError(ModelError):
    """Model files that are truncated, foreign, incomplete or of an unsupported kind."""


class DownloadError(ModelError):
    """A download that failed: no network, no space, wrong checksum."""


class RequestError(MidlineError):
    """A request that the engine refuses; the service answers HTTP 400."""


class ServiceError(MidlineError):
    """The engine's process cannot be started or reached."""
