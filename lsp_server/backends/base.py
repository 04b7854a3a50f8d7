"""The contract between the completion pipeline and whatever generates text."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from engine.request import CompletionRequest, Delta


class BackendState(str, Enum):
    """What a user can be told about the backend."""

    STOPPED = "stopped"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    MODEL_MISSING = "model_missing"
    FAILED = "failed"


@dataclass(frozen=True)
class BackendStatus:
    """State, the model's name, and one line for the user (empty when all is well)."""

    state: BackendState
    model: str
    message: str = ""


class Backend(Protocol):
    """Generates text for a completion request."""

    @property
    def status(self) -> BackendStatus:
        """The last known state; costs nothing."""

    async def ensure_ready(self) -> BackendStatus:
        """Start whatever is needed, without waiting for a model to load; never raises for a user error."""

    def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yield deltas; the last one carries ``finished``. Closing the generator cancels the work.

        Raises ``ServiceError`` when the backend cannot be reached or is not ready.
        """

    async def restart(self) -> BackendStatus:
        """Stop what runs and start it again, also after failures; as ``ensure_ready`` otherwise."""

    async def aclose(self) -> None:
        """Release connections. Running requests are cancelled."""
