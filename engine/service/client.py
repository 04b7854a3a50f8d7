"""A client of the service for other processes. Light: imports no torch, and httpx only when first used.

It knows the HTTP interface, and neither finds nor starts a service (see ``engine.service.launcher``).
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING, Any

from engine.errors import RequestError, ServiceError
from engine.request import CompletionRequest, Delta, Finished, FinishReason, Timing, Usage
from engine.service.registration import UNIX_PREFIX

if TYPE_CHECKING:
    import httpx

_CONNECT_TIMEOUT_S = 2.0
_HEALTH_TIMEOUT_S = 5.0
_KEEPALIVE_EXPIRY_S = 30.0  # less than the service's own, so that we never reuse a connection it is closing


class ServiceState(str, Enum):
    """What a service can be doing."""

    STOPPED = "stopped"
    """None runs, and the last one left no error."""
    LOADING = "loading"
    READY = "ready"
    MODEL_MISSING = "model_missing"
    """The model is not downloaded."""
    FAILED = "failed"


@dataclass(frozen=True)
class HealthReport:
    """The answer of ``/health``; details are empty when the service did not accept our token."""

    state: ServiceState
    message: str = ""
    """One line when the state is ``FAILED`` or ``MODEL_MISSING``."""
    model: str = ""
    version: str = ""
    pid: int = 0
    uptime_s: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    family: str = ""
    context_tokens: int = 0
    dtype: str = ""
    kernels: str = ""
    device: str = ""
    num_threads: int = 0
    num_parameters: int = 0
    memory_bytes: int = 0
    self_test: str = ""


class ServiceClient:
    """Talks to one service. Use it on one event loop; close it with ``aclose``."""

    def __init__(self, address: str, token: str) -> None:
        """``address`` is ``unix:PATH`` or ``http://HOST:PORT``."""
        self.address = address
        self.is_broken = False
        """True once the service could not be reached; the launcher then looks for another."""
        self._token = token
        self._http: httpx.AsyncClient | None = None

    async def health(self) -> HealthReport:
        """State and details. Raises ``ServiceError`` when the service cannot be reached."""
        import httpx

        try:
            response = await self._client().get("/health", timeout=_HEALTH_TIMEOUT_S)
        except (httpx.TransportError, RuntimeError) as error:  # a closed client raises a bare RuntimeError
            raise self._unreachable(error) from error
        return _health_report(response.status_code, _json_object(response.content))

    async def metrics(self) -> str:
        """All counts and times in Prometheus' text format. Raises ``ServiceError``."""
        import httpx

        try:
            response = await self._client().get("/metrics", timeout=_HEALTH_TIMEOUT_S)
        except (httpx.TransportError, RuntimeError) as error:
            raise self._unreachable(error) from error
        if response.status_code != 200:
            raise _refusal(response.status_code, response.content)
        return response.text

    async def stream(self, request: CompletionRequest) -> AsyncGenerator[Delta, None]:
        """Yield deltas; the last one carries ``finished``. Closing the generator cancels the work.

        Raises ``RequestError`` when the request is refused, ``ServiceError`` when the service cannot be
        reached, is still loading, is full, or fails.
        """
        import httpx

        body = json.dumps(_request_body(request)).encode()  # ASCII: lone surrogates survive the way
        is_finished = False
        try:
            async with self._client().stream("POST", "/v1/completions", content=body) as response:
                if response.status_code != 200:
                    raise _refusal(response.status_code, await response.aread())
                async with aclosing(_events(response)) as events:
                    async for event in events:
                        delta = _delta(event)
                        is_finished = delta.finished is not None
                        yield delta
        except (httpx.TransportError, RuntimeError) as error:  # a closed client raises a bare RuntimeError
            raise self._unreachable(error) from error
        if not is_finished:
            raise ServiceError("the engine ended its answer early; see its log")

    async def shutdown(self) -> None:
        """Ask the service to exit; returns when it has agreed, or is already gone."""
        import httpx

        try:
            await self._client().post("/shutdown", timeout=_HEALTH_TIMEOUT_S)
        except httpx.TransportError:
            self.is_broken = True

    async def aclose(self) -> None:
        """Close all connections; running requests are cancelled."""
        if self._http is not None:
            await self._http.aclose()

    def _client(self) -> "httpx.AsyncClient":
        if self._http is None:
            import httpx

            is_unix = self.address.startswith(UNIX_PREFIX)
            path = self.address[len(UNIX_PREFIX) :] if is_unix else None
            self._http = httpx.AsyncClient(
                transport=httpx.AsyncHTTPTransport(
                    uds=path,
                    verify=False,  # no TLS on this machine; reading the certificates would block for long
                    retries=0,
                    limits=httpx.Limits(max_connections=None, keepalive_expiry=_KEEPALIVE_EXPIRY_S),
                ),
                base_url="http://localhost" if is_unix else self.address,
                headers={"Authorization": f"Bearer {self._token}"},
                timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S),
                trust_env=False,  # a proxy in the environment is not for this connection
            )
        return self._http

    def _unreachable(self, error: Exception) -> ServiceError:
        self.is_broken = True
        return ServiceError(f"the engine cannot be reached at {self.address} ({type(error).__name__})")


def _request_body(request: CompletionRequest) -> dict[str, object]:
    body: dict[str, object] = {name: value for name, value in asdict(request.sampling).items() if value is not None}
    body.update(prompt=request.prefix or list(request.prompt_ids) or "", stream=True, return_token_ids=True)
    body.update(lane=request.lane.value, session=request.session, draft=request.draft, deadline_ms=request.deadline_ms)
    body.update(corpus=list(request.corpus))
    body.update(anchor=request.anchor, use_cache=request.use_cache, heal=request.heal, use_drafts=request.use_drafts)
    if request.suffix is not None:
        body["suffix"] = request.suffix
    if request.extra:
        body["midline_extra"] = [{"filename": item.path, "text": item.text} for item in request.extra]
    return body


async def _events(response: "httpx.Response") -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(response.aiter_lines()) as lines:  # type: ignore[type-var]
        async for line in lines:
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = _json_object(line[len("data: ") :].encode())
            if "error" in event:
                raise ServiceError(_error_message(event))
            yield event


def _delta(event: Mapping[str, Any]) -> Delta:
    choice, block = event["choices"][0], event["midline"]
    return Delta(
        text=choice["text"],
        token_ids=tuple(choice.get("token_ids") or ()),
        finished=_finished(block) if "reason" in block else None,
        usage=Usage(**block["usage"]),
    )


def _finished(block: Mapping[str, Any]) -> Finished:
    return Finished(
        reason=FinishReason(block["reason"]),
        usage=Usage(**block["usage"]),
        timing=Timing(**block["timing"]),
        stop_string=block["stop_string"],
        mean_logprob=block["mean_logprob"],
    )


def _health_report(status_code: int, body: Mapping[str, Any]) -> HealthReport:
    if status_code == 200:
        state = ServiceState.READY
    elif status_code == 503:
        state = ServiceState.LOADING
    elif body.get("error_kind") == "ModelNotDownloadedError":
        state = ServiceState.MODEL_MISSING
    else:
        state = ServiceState.FAILED
    details = {item.name: body[item.name] for item in fields(HealthReport)[2:] if item.name in body}
    message = "" if state in (ServiceState.READY, ServiceState.LOADING) else _error_message(body)
    return HealthReport(state=state, message=message, **details)


def _refusal(status_code: int, content: bytes) -> RequestError | ServiceError:
    message = _error_message(_json_object(content))
    return RequestError(message) if status_code in (400, 413) else ServiceError(message)


def _json_object(content: bytes) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {}


def _error_message(body: Mapping[str, Any]) -> str:
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else "the engine answered in a way that is not ours"
