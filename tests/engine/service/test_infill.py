"""/infill as a client of llama.cpp's server sees it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.request import FileContext
from engine.service.fields import FieldError
from engine.service.infill import InfillCompletion
from tests.engine.service.fakes import INFO, RunningService, serve

# what llama.vim sends
LLAMA_VIM = {
    "id_slot": 0,
    "input_prefix": "a = 1\n",
    "input_suffix": "\nc = 3\n",
    "input_extra": [{"filename": "x.py", "text": "x = 0"}],
    "prompt": "b = ",
    "n_predict": 3,
    "n_indent": 4,
    "stop": [],
    "top_k": 40,
    "top_p": 0.9,
    "stream": False,
    "samplers": ["top_k", "top_p", "infill"],
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
    "response_fields": ["content", "timings/prompt_n"],
}


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RunningService]:
    async with serve(tmp_path) as running:
        yield running


async def infill(service: RunningService, **fields: object) -> dict:
    async with service.http() as http:
        response = await http.post("/infill", json={**LLAMA_VIM, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_request_of_llama_vim(service: RunningService) -> None:
    answer = await infill(service)
    (request,) = service.engine.requests
    assert (request.prefix, request.suffix) == ("a = 1\nb = ", "\nc = 3\n")
    assert request.extra == (FileContext("x.py", "x = 0"),)
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.min_indent, sampling.time_limit_ms) == (3, 4, 1000.0)
    assert (sampling.top_k, sampling.top_p, sampling.temperature, sampling.seed) == (40, 0.9, 0.0, None)
    assert answer["content"] == "<0><1><2>" and answer["tokens"] == [0, 1, 2]
    assert answer["stop"] is True and answer["stop_type"] == "limit" and answer["stopping_word"] == ""
    assert (answer["tokens_evaluated"], answer["tokens_cached"], answer["tokens_predicted"]) == (10, 4, 3)
    assert answer["model"] == "fake" and answer["truncated"] is False and answer["prompt"] == ""
    assert answer["generation_settings"]["n_predict"] == 3
    timings = answer["timings"]
    assert (timings["prompt_n"], timings["prompt_ms"]) == (6, 3.0)
    assert timings["prompt_per_second"] == pytest.approx(2000)
    assert (timings["predicted_n"], timings["predicted_ms"]) == (3, 6.0)
    assert timings["predicted_per_token_ms"] == pytest.approx(2.0)


async def test_warm_up_predicts_nothing(service: RunningService) -> None:
    answer = await infill(service, n_predict=0)
    assert service.engine.requests[0].sampling.max_tokens == 0
    assert answer["content"] == "" and answer["timings"]["predicted_per_token_ms"] == 0.0


async def test_no_limit_leaves_the_prompt_its_half_of_the_context(service: RunningService) -> None:
    await infill(service, n_predict=-1)
    assert service.engine.requests[0].sampling.max_tokens == INFO.context_tokens // 2


@pytest.mark.parametrize(("seed", "expected"), [(-1, None), (4294967295, None), (5, 5), (None, None)])
def test_seed(seed: int | None, expected: int | None) -> None:
    assert InfillCompletion({**LLAMA_VIM, "seed": seed}, INFO).request.sampling.seed == expected


async def test_stop_word_is_told(service: RunningService) -> None:
    answer = await infill(service, stop=["\n\n"])
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "\n\n")


async def test_stream_ends_with_the_counts_and_without_done(service: RunningService) -> None:
    async with service.http() as http:
        response = await http.post("/infill", json={**LLAMA_VIM, "stream": True})
    parts = [json.loads(part[len("data: ") :]) for part in response.text.split("\n\n") if part]
    assert [part["content"] for part in parts] == ["<0>", "<1>", "<2>", ""]
    assert [part["stop"] for part in parts] == [False, False, False, True]
    assert parts[-1]["tokens_predicted"] == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_prefix": None}, "input_prefix"),
        ({"input_suffix": 1}, "input_suffix"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"input_extra": ["x"]}, "input_extra"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
        ({"n_predict": -2}, "n_predict"),
        ({"n_indent": "4"}, "n_indent"),
    ],
)
def test_bad_field_is_named(fields: dict, param: str) -> None:
    with pytest.raises(FieldError) as caught:
        InfillCompletion({**LLAMA_VIM, **fields}, INFO)
    assert caught.value.param == param
