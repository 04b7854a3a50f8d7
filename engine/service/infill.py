"""llama.cpp's ``/infill`` in plain data: request body in, answer bodies out. Light and pure.

Samplers that we do not have and ``cache_prompt`` (always on here) are accepted and ignored.
``generation_settings`` in the answer shows what was honoured. The prompt is never echoed.
"""

import json
from collections.abc import Iterator, Mapping, Sequence

from engine.info import EngineInfo
from engine.request import CompletionRequest, Delta, FileContext, Finished, FinishReason, SamplingParams
from engine.service.fields import Fields

_DEFAULTS = SamplingParams()
_MAX_SEED = 2**63 - 1


class InfillCompletion:
    """One request to ``/infill`` and the shape of its answer."""

    def __init__(self, body: Mapping[str, object], info: EngineInfo) -> None:
        """Raises ``RequestError``."""
        fields = Fields(body)
        self.request = CompletionRequest(
            prefix=fields.text("input_prefix") + fields.text("prompt", ""),
            suffix=fields.text("input_suffix"),
            sampling=_sampling(fields, info.context_tokens // 2),
            extra=tuple(
                FileContext(path=item.text("filename", ""), text=item.text("text"))
                for item in fields.objects("input_extra")
            ),
        )
        self.is_streaming = fields.flag("stream")
        self._model = info.model

    def whole(self, deltas: Sequence[Delta]) -> dict[str, object]:
        """The answer in one piece; the last delta is finished."""
        token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
        finished = deltas[-1].finished
        assert finished is not None
        return self._last("".join(delta.text for delta in deltas), token_ids, finished)

    def events(self, delta: Delta) -> Iterator[str]:
        """The payloads of the server-sent events for one delta; llama.cpp sends no ``[DONE]`` here."""
        if delta.text or delta.token_ids:
            part = {"index": 0, "content": delta.text, "tokens": delta.token_ids, "stop": False, "id_slot": 0}
            yield json.dumps(part)
        if delta.finished is not None:
            yield json.dumps(self._last("", [], delta.finished))

    def _last(self, content: str, token_ids: list[int], finished: Finished) -> dict[str, object]:
        usage = finished.usage
        return {
            "index": 0,
            "content": content,
            "tokens": token_ids,
            "id_slot": 0,
            "stop": True,
            "model": self._model,
            "tokens_predicted": usage.generated_tokens,
            "tokens_evaluated": usage.prompt_tokens,
            "tokens_cached": usage.cached_tokens,
            "generation_settings": _settings(self.request.sampling, self.is_streaming),
            "prompt": "",
            "has_new_line": "\n" in content,
            "truncated": False,
            "stop_type": _stop_type(finished),
            "stopping_word": finished.stop_string,
            "timings": _timings(finished),
        }


def _sampling(fields: Fields, most_tokens: int) -> SamplingParams:
    """``most_tokens`` stands for llama.cpp's "no limit", so that the prompt keeps its half of the context."""
    max_tokens = fields.integer("n_predict", -1, lowest=-1)
    seed = fields.integer("seed", -1, lowest=-_MAX_SEED, highest=_MAX_SEED)
    time_limit_ms = fields.number("t_max_predict_ms", 0.0)
    return SamplingParams(
        max_tokens=most_tokens if max_tokens < 0 else max_tokens,
        temperature=max(0.0, fields.number("temperature", _DEFAULTS.temperature)),
        top_k=max(0, fields.integer("top_k", _DEFAULTS.top_k, lowest=-1)),
        top_p=fields.number("top_p", _DEFAULTS.top_p),
        min_p=fields.number("min_p", _DEFAULTS.min_p),
        seed=None if seed < 0 or seed == 0xFFFFFFFF else seed,  # llama.cpp writes its -1 also as unsigned
        stop=fields.texts("stop"),
        time_limit_ms=time_limit_ms if time_limit_ms > 0 else None,
        min_indent=fields.integer("n_indent", _DEFAULTS.min_indent),
    )


def _settings(sampling: SamplingParams, is_streaming: bool) -> dict[str, object]:
    return {
        "n_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": -1 if sampling.seed is None else sampling.seed,
        "stop": sampling.stop,
        "n_indent": sampling.min_indent,
        "t_max_predict_ms": sampling.time_limit_ms or 0,
        "stream": is_streaming,
    }


def _stop_type(finished: Finished) -> str:
    if finished.stop_string:
        return "word"
    return {
        FinishReason.STOP: "eos",
        FinishReason.LENGTH: "limit",
        FinishReason.TIME: "limit",
        FinishReason.REPETITION: "limit",
    }.get(finished.reason, "none")


def _timings(finished: Finished) -> dict[str, float]:
    usage, timing = finished.usage, finished.timing
    first_ms = timing.total_ms if timing.first_token_ms is None else timing.first_token_ms
    prompt_ms = max(0.0, first_ms - timing.queue_ms)
    predicted_ms = max(0.0, timing.total_ms - first_ms)
    num_evaluated = usage.prompt_tokens - usage.cached_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": num_evaluated,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, num_evaluated),
        "prompt_per_second": _ratio(1e3 * num_evaluated, prompt_ms),
        "predicted_n": usage.generated_tokens,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, usage.generated_tokens),
        "predicted_per_second": _ratio(1e3 * usage.generated_tokens, predicted_ms),
        "draft_n": usage.drafted_tokens,
        "draft_n_accepted": usage.accepted_tokens,
    }


def _ratio(value: float, divisor: float) -> float:
    return value / divisor if divisor else 0.0
