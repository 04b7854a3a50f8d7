"""Files whose text is never shown to a model, whatever else is said: by their names alone."""

import re
from pathlib import PurePosixPath

_NAMES = re.compile(
    r"""\.env(\..+)?|\.envrc|\.netrc|_netrc|\.npmrc|\.pypirc|\.pgpass|\.my\.cnf|\.htpasswd|\.git-credentials
    |id_(rsa|dsa|ecdsa|ed25519)(_sk)?|credentials?(\.(json|ya?ml|toml|ini|xml))?|secrets?\.(json|ya?ml|toml|ini|env)
    |service[-_]account.*\.json|\.vault-token
    |.*\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk|asc|gpg|tfstate|tfvars(\.json)?)""",
    re.IGNORECASE | re.VERBOSE,
)
_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".docker", ".kube"})
_TEMPLATES = (".example", ".sample", ".template", ".dist")
"""``.env.example`` is meant to be read."""


def is_secret(path: str) -> bool:
    """Whether a file, by its path or URI with slashes, may hold passwords or keys."""
    place = PurePosixPath(path.replace("\\", "/"))
    if place.name.lower().endswith(_TEMPLATES):
        return False
    return _NAMES.fullmatch(place.name) is not None or not _FOLDERS.isdisjoint(place.parts)
