"""/v1/completions as a client of OpenAI's API sees it."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.errors import RequestError
from engine.request import CompletionRequest, FileContext, Lane
from engine.service import app
from engine.service.fields import FieldError, parse_object
from engine.service.openai import OpenAICompletion
from tests.engine.service.fakes import INFO, FakeEngine, RunningService, serve


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[RunningService]:
    async with serve(tmp_path) as running:
        yield running


def events(text: str) -> list[dict]:
    parts = [part for part in text.split("\n\n") if part]
    assert all(part.startswith("data: ") for part in parts)
    assert parts[-1] == "data: [DONE]"
    return [json.loads(part[len("data: ") :]) for part in parts[:-1]]


async def test_whole_answer(service: RunningService) -> None:
    body = {"prompt": "def f(", "suffix": "):\n", "max_tokens": 3, "model": "whatever", "unheard_of": {"x": 1}}
    async with service.http() as http:
        response = await http.post("/v1/completions", json=body)
    answer = response.json()
    assert response.status_code == 200
    assert answer["object"] == "text_completion" and answer["model"] == "fake"
    assert answer["choices"] == [{"text": "<0><1><2>", "index": 0, "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 3,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0},
    }
    (request,) = service.engine.requests
    assert (request.prefix, request.suffix) == ("def f(", "):\n")


async def test_streamed_answer(service: RunningService) -> None:
    body = {"prompt": ["a"], "max_tokens": 2, "stream": True, "stop": "\n", "stream_options": {"include_usage": True}}
    async with service.http() as http:
        response = await http.post("/v1/completions", json=body)
    assert response.headers["content-type"].startswith("text/event-stream")
    *parts, last, usage = events(response.text)
    assert [part["choices"][0]["text"] for part in parts] == ["<0>", "<1>"]
    assert all(part["choices"][0]["finish_reason"] is None and part["usage"] is None for part in parts)
    assert last["choices"][0]["finish_reason"] == "stop"
    assert last["midline"]["stop_string"] == "\n"
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 12
    assert len({part["id"] for part in [*parts, last, usage]}) == 1


async def test_no_usage_chunk_unless_asked_for(service: RunningService) -> None:
    async with service.http() as http:
        response = await http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "stream": True})
    assert all("usage" not in event and len(event["choices"]) == 1 for event in events(response.text))


async def test_fields_reach_the_engine(service: RunningService) -> None:
    body = {
        "prompt": "abc",
        "max_tokens": 5.0,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "seed": 7,
        "stop": ["x", "yy"],
        "min_indent": 4,
        "outdented": "#",
        "stop_repetition": True,
        "has_labels": True,
        "literals": "go",
        "time_limit_ms": 250,
        "min_p": 0.1,
        "ignore_eos": True,
        "lane": "bulk",
        "session": "buffer 1",
        "deadline_ms": 900,
        "draft": "b = 2",
        "anchor": 2,
        "use_cache": False,
        "heal": False,
        "use_drafts": False,
        "midline_extra": [{"filename": "b.py", "text": "b = 1"}],
    }
    async with service.http() as http:
        assert (await http.post("/v1/completions", json=body)).status_code == 200
    (request,) = service.engine.requests
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0.5, 0.9, 0)
    assert (sampling.seed, sampling.stop) == (7, ("x", "yy"))
    assert (sampling.min_indent, sampling.time_limit_ms) == (4, 250.0)
    assert (sampling.outdented, sampling.stop_repetition) == ("#", True)
    assert (sampling.outdented, sampling.has_labels, sampling.literals) == ("#", True, "go")
    assert (sampling.min_p, sampling.ignore_eos) == (0.1, True)
    assert (request.lane, request.session, request.deadline_ms, request.draft) == (
        Lane.BULK,
        "buffer 1",
        900.0,
        "b = 2",
    )
    assert (request.anchor, request.use_cache, request.heal, request.use_drafts) == (2, False, False, False)
    assert request.suffix is None
    assert request.extra == (FileContext("b.py", "b = 1"),)


@pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
async def test_a_prompt_may_be_tokens(service: RunningService, prompt: object) -> None:
    async with service.http() as http:
        assert (await http.post("/v1/completions", json={"prompt": prompt})).status_code == 200
    assert service.engine.requests[0].prompt_ids == (5, 6)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, "b"]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [1, 2], "suffix": ""}, "suffix"),
        ({"prompt": "a", "lane": "fast"}, "lane"),
        ({"prompt": "a", "literals": "cobol"}, "literals"),
        ({"prompt": "a", "session": 1}, "session"),
        ({"prompt": "a", "deadline_ms": "soon"}, "deadline_ms"),
        ({"prompt": "a", "draft": []}, "draft"),
        ({"prompt": "a", "anchor": "a"}, "anchor"),
        ({"prompt": "a", "anchor": -1}, "anchor"),
        ({"prompt": "a", "heal": 1}, "heal"),
        ({"prompt": "a", "use_cache": "no"}, "use_cache"),
        ({"prompt": "a", "suffix": []}, "suffix"),
        ({"prompt": "a", "max_tokens": "5"}, "max_tokens"),
        ({"prompt": "a", "max_tokens": True}, "max_tokens"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "max_tokens": 10**30}, "max_tokens"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "stop": [""]}, "stop"),
        ({"prompt": "a", "stop": [3]}, "stop"),
        ({"prompt": "a", "stream": 1}, "stream"),
        ({"prompt": "a", "stream_options": 1}, "stream_options"),
        ({"prompt": "a", "n": 2}, "n"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "logprobs": 5}, "logprobs"),
        ({"prompt": "a", "midline_extra": [{"filename": "x"}]}, "midline_extra[0].text"),
    ],
)
def test_bad_field_is_named(body: dict, param: str) -> None:
    with pytest.raises(FieldError, match=f"^{re.escape(param)} ") as caught:
        OpenAICompletion(body, INFO)
    assert caught.value.param == param


async def test_bad_request_is_answered_as_openai_does(service: RunningService) -> None:
    async with service.http() as http:
        response = await http.post("/v1/completions", json={"prompt": 3})
        no_json = await http.post("/v1/completions", content=b"{")
    assert response.status_code == no_json.status_code == 400
    message = "prompt must be a string, not a number"
    expected = {"message": message, "type": "invalid_request_error", "param": "prompt", "code": 400}
    assert response.json() == {"error": expected}
    assert no_json.json()["error"]["message"] == "the body is not valid JSON"


@pytest.mark.parametrize(
    ("field", "value"), [("temperature", "NaN"), ("temperature", "1e999"), ("temperature", "-1"), ("top_p", "0")]
)
def test_number_out_of_range(field: str, value: str) -> None:
    body = parse_object(f'{{"prompt": "a", "{field}": {value}}}'.encode())
    with pytest.raises(RequestError, match=f"^{field} "):
        OpenAICompletion(body, INFO)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b'"text"', b"[" * 200_000])
def test_body_that_is_no_object(content: bytes) -> None:
    with pytest.raises(RequestError, match=r"^the body "):
        parse_object(content)


def test_harmless_values_of_unsupported_fields_are_accepted() -> None:
    body = {"prompt": "a", "n": 1, "best_of": 1, "echo": False, "logprobs": None, "stop": None, "seed": None}
    assert OpenAICompletion(body, INFO).request == CompletionRequest("a")


async def test_body_too_large(service: RunningService) -> None:
    body = b'{"prompt": "' + b"a" * (16 * 2**20) + b'"}'
    async with service.http() as http:
        response = await http.post("/v1/completions", content=body)
    assert response.status_code == 413
    assert "16 MiB" in response.json()["error"]["message"]


async def test_lone_surrogates_become_replacement_characters(service: RunningService) -> None:
    async with service.http() as http:
        content = rb'{"prompt": "a\ud800b \ud83d\ude00", "max_tokens": 1}'
        assert (await http.post("/v1/completions", content=content)).status_code == 200
    assert service.engine.requests[0].prefix == "a\N{REPLACEMENT CHARACTER}b \N{GRINNING FACE}"


@pytest.mark.parametrize("is_streaming", [False, True])
async def test_refusal_of_the_engine_is_a_400_even_when_streaming(service: RunningService, is_streaming: bool) -> None:
    async with service.http() as http:
        response = await http.post("/v1/completions", json={"prompt": "too long", "stream": is_streaming})
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "the prompt has 9 tokens, more than 8"
    assert await service.metric('midline_requests_total{outcome="refused",route="/v1/completions"}') == 1


async def test_failing_engine_is_told_without_the_users_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(failure=RuntimeError("cannot compute SECRET"), fails_after=1)
    async with serve(tmp_path, engine) as service, service.http() as http:
        whole = await http.post("/v1/completions", json={"prompt": "SECRET"})
        streamed = await http.post("/v1/completions", json={"prompt": "SECRET", "stream": True})
        assert whole.status_code == 500 and "error" in whole.json()
        last = json.loads(streamed.text.split("\n\n")[-2][len("data: ") :])
        assert last["error"]["type"] == "server_error"
        assert await service.metric('midline_requests_total{outcome="failed",route="/v1/completions"}') == 2
        assert (await http.get("/health")).status_code == 200
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in whole.text + streamed.text + caplog.text


async def test_a_bug_before_the_engine_is_logged_without_the_users_text(
    service: RunningService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(body: dict[str, object], info: object) -> None:
        raise ValueError(body["prompt"])

    monkeypatch.setitem(app._COMPLETIONS, "/v1/completions", broken)
    async with service.http() as http:
        answer = await http.post("/v1/completions", json={"prompt": "SECRET"})
    assert answer.status_code == 500
    assert "ValueError" in caplog.text
    assert "SECRET" not in answer.text + caplog.text


async def test_a_bug_in_any_route_is_answered_and_logged_without_its_message(
    service: RunningService, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(model: str, started_at_s: float) -> None:
        raise ValueError(model * 2)  # a traceback shows this line, which is not the message

    monkeypatch.setattr(app, "model_list", broken)
    async with service.http() as http:
        answer = await http.get("/v1/models")
        assert (await http.get("/health")).status_code == 200
    assert answer.status_code == 500 and answer.json()["error"]["type"] == "server_error"
    assert "ValueError" in caplog.text
    assert "fakefake" not in answer.text + caplog.text
