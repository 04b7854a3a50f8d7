"""Whatever a client sends, the parsers answer with a request or with a ``RequestError`` that quotes no text."""

import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.request import CompletionRequest
from engine.service.fields import parse_object
from engine.service.infill import InfillCompletion
from engine.service.openai import OpenAICompletion
from tests.engine.service.fakes import INFO

FIELDS = [
    *("prompt", "suffix", "max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "stream", "stream_options"),
    *(
        "n",
        "best_of",
        "echo",
        "logprobs",
        "min_indent",
        "literals",
        "time_limit_ms",
        "midline_extra",
        "return_token_ids",
    ),
    *("input_prefix", "input_suffix", "input_extra", "n_predict", "n_indent", "t_max_predict_ms", "filename", "text"),
]
SECRET = "SECRET"
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(string.printable + "é😀\ud800", max_size=5).map(SECRET.__add__)
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=6,
)
bodies = st.dictionaries(st.sampled_from(FIELDS), values, max_size=8)


@pytest.mark.parametrize("parser", [OpenAICompletion, InfillCompletion])
@settings(derandomize=True, max_examples=300, deadline=None)
@given(body=bodies, is_complete=st.booleans())
def test_any_body(parser: Any, body: dict[str, Any], is_complete: bool) -> None:
    if is_complete:
        body = {"prompt": "a", "input_prefix": "a", "input_suffix": "b"} | body
    body = parse_object(json.dumps(body).encode())
    try:
        request = parser(body, INFO).request
    except RequestError as error:
        message = str(error)
        assert SECRET not in message and "\n" not in message and message
        return
    assert isinstance(request, CompletionRequest)
    for text in (request.prefix, request.suffix or "", *request.sampling.stop, *(x.text for x in request.extra)):
        text.encode()
    sampling = request.sampling
    assert sampling.max_tokens >= 0 and 0 <= sampling.temperature <= 10 and 0 < sampling.top_p <= 1
    assert sampling.seed is None or 0 <= sampling.seed < 2**63
