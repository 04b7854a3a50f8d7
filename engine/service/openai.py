"""OpenAI's ``/v1/completions`` in plain data: request body in, answer bodies out. Light and pure.

The extra fields ``min_indent``, ``outdented``, ``has_labels``, ``literals``, ``stop_repetition``, ``time_limit_ms``,
``ignore_eos``, ``lane``, ``session``, ``deadline_ms``, ``draft``, ``corpus``, ``anchor``, ``use_cache``, ``heal``,
``use_drafts``, ``midline_extra`` and ``return_token_ids`` are ours; so is the block ``midline``: the counts so far, and
beside the finish reason also our own reason and the times.
"""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from engine.errors import RequestError
from engine.info import EngineInfo
from engine.literals import FAMILIES
from engine.request import (
    CompletionRequest,
    Delta,
    FileContext,
    FinishReason,
    Lane,
    SamplingParams,
    Usage,
)
from engine.service.fields import FieldError, Fields

_DEFAULTS = SamplingParams()
_MAX_SEED = 2**63 - 1


class OpenAICompletion:
    """One request to ``/v1/completions`` and the shape of its answer."""

    def __init__(self, body: Mapping[str, object], info: EngineInfo) -> None:
        """Raises ``RequestError``."""
        fields = Fields(body)
        _refuse_unsupported(fields)
        prompt_ids = _prompt_ids(body)
        self.request = CompletionRequest(
            prefix="" if prompt_ids else _prompt(body, fields),
            prompt_ids=prompt_ids,
            suffix=fields.text("suffix") if body.get("suffix") is not None else None,
            sampling=_sampling(body, fields),
            extra=tuple(
                FileContext(path=item.text("filename"), text=item.text("text"))
                for item in fields.objects("midline_extra")
            ),
            lane=Lane(fields.choice("lane", [lane.value for lane in Lane])),
            session=fields.text("session", ""),
            deadline_ms=fields.number("deadline_ms", 0.0) if body.get("deadline_ms") is not None else None,
            draft=fields.text("draft", ""),
            corpus=fields.texts("corpus"),
            anchor=fields.integer("anchor", 0) if body.get("anchor") is not None else None,
            use_cache=fields.flag("use_cache", True),
            heal=fields.flag("heal", True),
            use_drafts=fields.flag("use_drafts", True),
        )
        self.is_streaming = fields.flag("stream")
        self._includes_usage = fields.nested("stream_options").flag("include_usage")
        self._includes_token_ids = fields.flag("return_token_ids")
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": info.model,
        }

    def whole(self, deltas: Sequence[Delta]) -> dict[str, object]:
        """The answer in one piece; the last delta is finished."""
        text = "".join(delta.text for delta in deltas)
        token_ids = tuple(token_id for delta in deltas for token_id in delta.token_ids)
        finished = deltas[-1].finished
        assert finished is not None
        return self._body(Delta(text, token_ids, finished)) | {"usage": _usage(finished.usage)}

    def events(self, delta: Delta) -> Iterator[str]:
        """The payloads of the server-sent events for one delta."""
        usage = {"usage": None} if self._includes_usage else {}
        yield json.dumps(self._body(delta) | usage)
        if delta.finished is not None:
            if self._includes_usage:
                yield json.dumps(self._head | {"choices": [], "usage": _usage(delta.finished.usage)})
            yield "[DONE]"

    def _body(self, delta: Delta) -> dict[str, object]:
        finished = delta.finished
        choice: dict[str, object] = {
            "text": delta.text,
            "index": 0,
            "logprobs": None,
            "finish_reason": _finish_reason(finished.reason) if finished else None,
        }
        if self._includes_token_ids:
            choice["token_ids"] = delta.token_ids
        extra = asdict(finished) if finished else {"usage": asdict(delta.usage)}
        return self._head | {"choices": [choice], "midline": extra}


def model_list(model: str, created_s: float) -> dict[str, object]:
    """The answer of ``/v1/models``."""
    entry = {"id": model, "object": "model", "created": int(created_s), "owned_by": "midline"}
    return {"object": "list", "data": [entry]}


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, object]:
    """An error as OpenAI's and llama.cpp's clients read it."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def request_error_body(error: RequestError) -> dict[str, object]:
    """The answer to a request that was refused."""
    param = error.param if isinstance(error, FieldError) else None
    return error_body(str(error), "invalid_request_error", 400, param)


def _prompt(body: Mapping[str, object], fields: Fields) -> str:
    prompt = body.get("prompt")
    if not isinstance(prompt, list):
        return fields.text("prompt")
    if len(prompt) != 1 or not isinstance(prompt[0], str):
        raise FieldError("prompt", "must be one string, a list with one string, or a list of token ids")
    return Fields({"prompt": prompt[0]}).text("prompt")


def _prompt_ids(body: Mapping[str, object]) -> tuple[int, ...]:
    """A prompt given in tokens, also as the only one of a list; otherwise empty."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], list):
        prompt = prompt[0]
    if not isinstance(prompt, list) or not prompt or not all(type(item) is int for item in prompt):
        return ()
    if body.get("suffix") is not None:
        raise FieldError("suffix", "cannot be combined with a prompt in tokens; put the markers into the prompt")
    return tuple(prompt)


def _sampling(body: Mapping[str, object], fields: Fields) -> SamplingParams:
    has_limit = body.get("time_limit_ms") is not None
    return SamplingParams(
        max_tokens=fields.integer("max_tokens", _DEFAULTS.max_tokens),
        temperature=fields.number("temperature", _DEFAULTS.temperature),
        top_k=max(0, fields.integer("top_k", _DEFAULTS.top_k, lowest=-1)),
        top_p=fields.number("top_p", _DEFAULTS.top_p),
        min_p=fields.number("min_p", _DEFAULTS.min_p),
        ignore_eos=fields.flag("ignore_eos"),
        seed=fields.integer("seed", 0, highest=_MAX_SEED) if body.get("seed") is not None else None,
        stop=fields.texts("stop"),
        time_limit_ms=fields.number("time_limit_ms", 0.0) if has_limit else None,
        min_indent=fields.integer("min_indent", _DEFAULTS.min_indent),
        outdented=fields.text("outdented", ""),
        has_labels=fields.flag("has_labels"),
        literals=fields.choice("literals", ["", *FAMILIES]),
        stop_repetition=fields.flag("stop_repetition"),
    )


def _refuse_unsupported(fields: Fields) -> None:
    fields.refuse_unless("n", (1,))
    fields.refuse_unless("best_of", (1,))
    fields.refuse_unless("echo", (False,))
    fields.refuse_unless("logprobs", (False,))


def _finish_reason(reason: FinishReason) -> str:
    return "stop" if reason is FinishReason.STOP else "length"


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.generated_tokens,
        "total_tokens": usage.prompt_tokens + usage.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {
            "accepted_prediction_tokens": usage.accepted_tokens,
            "rejected_prediction_tokens": usage.drafted_tokens - usage.accepted_tokens,
        },
    }
