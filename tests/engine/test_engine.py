"""The engine on a tiny checkpoint: cached = uncached, constraints, cancellation, and errors at load."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import PROFILES, EngineConfig, LaneLimits
from engine.engine import Engine
from engine.errors import CheckpointError, ConfigError, RequestError
from engine.request import CompletionRequest, Finished, FinishReason, SamplingParams
from tests.support.tiny_checkpoints import TinyShape, write_tiny_folder, write_tiny_gguf


def _load(path: Path) -> Engine:
    return Engine.load(EngineConfig(model=str(path), dtype="float32", max_context_tokens=512))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return _load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1))


@pytest.fixture(scope="module")
def fresh_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A second one, to compare with."""
    return _load(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=1))


def _complete(engine: Engine, request: CompletionRequest) -> tuple[str, tuple[int, ...], Finished]:
    deltas = list(engine.generate(request))
    assert all(delta.finished is None for delta in deltas[:-1])
    assert deltas[-1].finished is not None
    ids = tuple(i for delta in deltas for i in delta.token_ids)
    return "".join(delta.text for delta in deltas), ids, deltas[-1].finished


def _request(prefix: str, suffix: str | None = "", **sampling: object) -> CompletionRequest:
    return CompletionRequest(prefix, suffix, SamplingParams(**{"max_tokens": 12, **sampling}))  # type: ignore[arg-type]


def _draft(text: str) -> CompletionRequest:
    return CompletionRequest("", draft=text)


def test_info_says_what_was_loaded(engine: Engine) -> None:
    info = engine.info
    assert (info.architecture, info.fim_family, info.dtype, info.context_tokens) == ("qwen2", "qwen", "float32", 512)
    assert info.self_test == "failed"  # random weights fill no hole
    assert info.memory_bytes > info.num_parameters * 4


_edits = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["a", "for x in y:\n", "    ", "return 1", "é"])), max_size=6
)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(edits=_edits)
def test_what_is_cached_changes_no_answer(engine: Engine, fresh_engine: Engine, edits: list[tuple[int, str]]) -> None:
    """A session of edits on one engine, each answer compared with an engine that has forgotten everything."""
    text = "def add(a, b):\n    return "
    for position, new in edits:
        at = min(position, len(text))
        text = text[:at] + new + text[at:]
        request = _request(text, "\n\nprint(1)\n")
        fresh_engine.cache.clear()
        cached, plain = _complete(engine, request), _complete(fresh_engine, request)
        assert cached[:2] == plain[:2]
        assert plain[2].usage.cached_tokens == 0
        engine.loop.check_idle()


def test_appending_computes_only_what_was_typed(engine: Engine) -> None:
    _complete(engine, _request("x = 1\nfor i", "\nend"))
    usage = _complete(engine, _request("x = 1\nfor i in", "\nend"))[2].usage
    assert usage.prompt_tokens - usage.cached_tokens <= 4
    usage = _complete(engine, _request("x = 1\nfor i in", "\nend"))[2].usage
    assert usage.prompt_tokens - usage.cached_tokens == 1


def test_the_answer_begins_after_the_required_space(engine: Engine) -> None:
    for indent in ("    ", "\t", "        ", "  \t "):
        request = _request("if x:\n" + indent, "\n")
        text, ids, _ = _complete(engine, request)
        whole = engine.detokenize(list(ids))
        assert whole.startswith(indent[-1])
        assert whole[1:].startswith(text.rstrip("\ufffd"))


def test_limits_and_stop_strings(engine: Engine) -> None:
    text, ids, finished = _complete(engine, _request("def f():\n", max_tokens=5))
    assert (len(ids), finished.reason) == (5, FinishReason.LENGTH)
    stop = text[1:3]
    cut, _, finished = _complete(engine, _request("def f():\n", max_tokens=5, stop=(stop,)))
    assert (finished.reason, finished.stop_string) == (FinishReason.STOP, stop)
    assert cut == text[: text.index(stop)]
    _, ids, finished = _complete(engine, _request("def f():\n", max_tokens=0))
    assert (ids, finished.reason, finished.timing.first_token_ms) == ((), FinishReason.LENGTH, None)


def test_a_seed_gives_the_same_text(engine: Engine) -> None:
    request = _request("a", temperature=1.0, seed=5)
    assert _complete(engine, request)[0] == _complete(engine, request)[0]
    other = replace(request, sampling=replace(request.sampling, seed=6))
    assert _complete(engine, request)[0] != _complete(engine, other)[0]


def test_left_to_right_has_no_markers(engine: Engine) -> None:
    ids = engine.prompt(_request("<|fim_middle|>def", None)).ids
    assert not any(engine._vocabulary.tokenizer.is_control(i) for i in ids)
    with pytest.raises(RequestError, match="the prompt is empty"):
        next(engine.generate(_request("", None)))


def test_a_padded_embedding_yields_no_token_outside_the_vocabulary(tmp_path: Path) -> None:
    engine = _load(write_tiny_gguf(tmp_path / "padded.gguf", TinyShape(num_padding_tokens=4000)))
    _, ids, _ = _complete(engine, _request("x", temperature=5.0, seed=1, max_tokens=200))
    assert ids
    assert max(ids) < engine._vocabulary.tokenizer.vocab_size


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "short.gguf", TinyShape(num_padding_tokens=-5))
    with pytest.raises(CheckpointError, match=r"short.gguf has \d+ tokens in its vocabulary, \d+ in its embedding"):
        _load(path)


def test_tokens_that_repeat_what_was_typed_do_not_count(engine: Engine) -> None:
    text, ids, finished = _complete(engine, _request("x = def", max_tokens=1))
    assert len(text.encode()) > 0
    assert finished.usage.generated_tokens == len(ids) >= 1


def test_without_the_cache_nothing_is_taken_from_it_and_nothing_left(engine: Engine) -> None:
    request = _request("x = 1\nfor k", "\nend")
    alone = replace(request, use_cache=False)
    engine.cache.clear()
    first = _complete(engine, alone)
    assert engine.cache.num_cached == 0
    cached = _complete(engine, request)
    num_cached = engine.cache.num_cached
    again = _complete(engine, alone)
    assert first[:2] == cached[:2] == again[:2]
    assert [answer[2].usage.cached_tokens for answer in (first, cached, again)] == [0, 0, 0]
    assert engine.cache.num_cached == num_cached
    engine.loop.check_idle()


def test_without_drafts_one_token_comes_after_the_other(engine: Engine) -> None:
    request = _request("x = 1\nx = 1\nx = 1\nx", max_tokens=20)
    text, ids, _ = _complete(engine, request)
    request = replace(request, draft=text)
    assert _complete(engine, request)[2].usage.drafted_tokens > 0
    alone = _complete(engine, replace(request, use_drafts=False))
    assert (alone[1], alone[2].usage.drafted_tokens) == (ids, 0)


@pytest.mark.parametrize("typed", ["    ", "impor", "a b", "x = 1\n    s"])
def test_drafts_begin_with_what_is_required(engine: Engine, typed: str) -> None:
    """Whatever was typed before, and whatever the text repeats."""
    before = "import os\nimpossible = 1\n    x = 2\n"
    request = replace(_request(before + typed, "\n"), anchor=len(before))
    prompt = engine.prompt(request)
    pieces = engine._vocabulary.tokenizer.all_bytes
    earlier, ngrams = engine._sources(prompt, _draft("zz = 3"), 200)
    assert b"".join(pieces[i] for i in earlier.propose(prompt.ids, 64)) == prompt.required + b"zz = 3"
    for at in range(3, len(prompt.ids)):  # whatever the last tokens are
        ids = [*prompt.ids, *prompt.ids[at - 3 : at]]
        source = engine._sources(replace(prompt, ids=ids), _draft(""), 200)[0]
        text = b"".join(pieces[i] for i in source.propose(ids, 8))
        assert text.startswith(prompt.required) or prompt.required.startswith(text)
    assert ngrams.name.startswith("ngram")


def test_without_healing_everything_typed_is_fed(engine: Engine) -> None:
    request = _request("if x:\n    ", "\n")
    ids = engine.prompt(replace(request, heal=False)).ids
    assert engine.detokenize(ids[-2:]).endswith("    ")
    assert engine.prompt(replace(request, heal=False)).required == b""
    assert engine.prompt(replace(request, suffix=None, heal=False)).required == b""


_typed = st.lists(
    st.sampled_from(
        ["a", " ", "\t", "\n    ", "\r\n", "return", "impor", ".", "):", "12", "é", "😀", "<|fim_middle|>"]
    ),
    min_size=1,
    max_size=6,
).map("".join)


@settings(max_examples=6, derandomize=True, deadline=None)
@given(typed=_typed)
def test_a_keystroke_computes_what_was_typed_and_never_repeats_it(
    engine: Engine, fresh_engine: Engine, typed: str
) -> None:
    """Character by character with one anchor, over line ends: the same answers as an engine that knows nothing."""
    before = "def add(a, b):\n"
    computed = []
    for length in range(len(typed) + 1):
        request = replace(_request(before + typed[:length], "\n\nprint(1)\n", max_tokens=3), anchor=len(before))
        answer = _complete(engine, request)
        fresh_engine.cache.clear()
        assert answer[:2] == _complete(fresh_engine, replace(request, use_drafts=False))[:2]
        _assert_goes_on_from(engine, request, answer[:2])
        usage = answer[2].usage
        computed.append(usage.prompt_tokens - usage.cached_tokens)
    assert max(computed[1:]) <= 8
    assert sum(computed[1:]) <= len(typed) + 2 * len(engine.tokenize(typed))


def _assert_goes_on_from(engine: Engine, request: CompletionRequest, answer: tuple[str, tuple[int, ...]]) -> None:
    """What was fed and generated spells what was typed, then the answer."""
    pieces = engine._vocabulary.tokenizer.all_bytes
    prompt = engine.prompt(request)
    generated = b"".join(pieces[i] for i in answer[1])
    assert generated.startswith(prompt.required)
    assert generated[len(prompt.required) :].decode(errors="replace").startswith(answer[0].rstrip("\ufffd"))
    typed = request.prefix[request.anchor :].encode()
    fed = b"".join(pieces[i] for i in prompt.ids)
    assert (fed + prompt.required).endswith(typed)


def test_typing_what_was_suggested_leaves_exactly_the_rest(engine: Engine) -> None:
    """It does where what is fed are the very tokens that were generated, which only the tokens can tell."""
    num_exact = num_typed = 0
    for before in ("def add(a, b):\n", "import os\n", "class Point:\n", "x\n"):
        for start in ("", "    ret", "a", "self.x"):
            request = replace(_request(before + start, "\nend\n", max_tokens=24), anchor=len(before))
            text, ids, finished = _complete(engine, request)
            whole = [*engine.prompt(request).ids, *ids]
            for length in range(1, len(text.partition("\ufffd")[0]) + 1):
                typed = replace(request, prefix=request.prefix + text[:length])
                fed = engine.prompt(typed).ids
                num_typed += 1
                if whole[: len(fed)] != fed:
                    continue
                num_exact += 1
                rest = _complete(engine, typed)[0]
                if finished.reason is FinishReason.STOP:
                    assert rest == text[length:]
                else:
                    assert rest.startswith(text[length:].rstrip("\ufffd"))
    assert num_exact > 40, (num_exact, num_typed)


def test_a_tiny_temperature_is_nearly_greedy(engine: Engine) -> None:
    assert _complete(engine, _request("a", temperature=1e-40, seed=1))[0] == _complete(engine, _request("a"))[0]


def test_a_long_prompt_is_computed_in_pieces_with_the_same_result(engine: Engine, fresh_engine: Engine) -> None:
    request = _request("x = [1, 2, 3]\n" * 20, "\n")
    fresh_engine.cache.clear()
    whole = _complete(fresh_engine, request)
    small = replace(PROFILES["completion"], interactive=LaneLimits(4, 7))
    chunked = engine.with_profile(small)
    chunked.cache.clear()
    assert _complete(chunked, request)[:2] == whole[:2]


def test_requests_together_give_the_answers_of_requests_alone(engine: Engine, fresh_engine: Engine) -> None:
    requests = [_request(text, max_tokens=n) for text, n in (("a", 3), ("def f(x):\n    ", 12), ("a", 9), ("", 0))]
    together = engine.complete_all(requests)
    for request, answer in zip(requests, together, strict=True):
        fresh_engine.cache.clear()
        assert (answer.text, answer.token_ids) == _complete(fresh_engine, request)[:2]
    engine.loop.check_idle()


def test_leaving_an_answer_cancels_it(engine: Engine) -> None:
    answer = engine.generate(_request("def f():\n", max_tokens=50))
    next(answer)
    answer.close()
    assert not engine.loop.has_work
    engine.loop.check_idle()


def test_what_breaks_a_pass_is_raised_and_the_next_request_runs(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = _request("x = 5\ny", "\n")
    expected = _complete(engine, request)[:2]
    with monkeypatch.context() as patch:
        patch.setattr("engine.sampling.Sampler.choose", lambda *_: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            _complete(engine, request)
        with pytest.raises(ZeroDivisionError):
            engine.complete_all([request, _request("other")])
    engine.loop.check_idle()
    assert _complete(engine, request)[:2] == expected


def test_mean_logprob_is_that_of_the_answer(engine: Engine) -> None:
    greedy = _complete(engine, _request("def f():\n"))[2].mean_logprob
    other = _complete(engine, _request("def f():\n", temperature=3.0, seed=1))[2].mean_logprob
    assert greedy is not None and other is not None
    assert other < greedy < 0
    assert _complete(engine, _request("def f():\n", max_tokens=0))[2].mean_logprob is None


def test_a_draft_saves_passes_and_changes_nothing(engine: Engine) -> None:
    request = _request("for x in y:\n    ", "\n", max_tokens=16)
    text, ids, plain = _complete(engine, request)
    _, drafted_ids, drafted = _complete(engine, replace(request, draft=text))
    assert drafted_ids == ids
    assert drafted.usage.accepted_tokens >= plain.usage.accepted_tokens
    wrong = _complete(engine, replace(request, draft="return 1 if self.x else 2"))
    assert wrong[1] == ids


@pytest.mark.parametrize("seed", [1, 2])
def test_a_draft_model_changes_no_answer(
    engine: Engine, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model itself as the draft model is always right, another one hardly ever."""
    path = write_tiny_gguf(tmp_path / "tiny.gguf", seed=1)
    smaller = write_tiny_gguf(tmp_path / "smaller.gguf", TinyShape(num_layers=1 if seed == 2 else 2), seed=seed)
    config = EngineConfig(model=str(path), dtype="float32", max_context_tokens=512, draft_model=str(smaller))
    both = Engine.load(config)
    assert both._draft_model is not None
    monkeypatch.setattr("engine.engine.NGrams.propose", lambda *_: [])
    monkeypatch.setattr(both._draft_model, "_measure", lambda *_: None)
    num_drafted = num_accepted = 0
    for cost_s in (1000.0, 1e-9):  # at first drafts look expensive, then they are free
        both._draft_model.decode_s = both._draft_model.prefill_s = cost_s
        for text in ("def f():\n", "for x in y:\n    ", "for x in y:\n    z"):
            request = _request(text, max_tokens=30, ignore_eos=True)
            answer = _complete(both, request)
            assert answer[1] == _complete(engine, request)[1]
            num_drafted += answer[2].usage.drafted_tokens
            num_accepted += answer[2].usage.accepted_tokens
            assert cost_s < 1.0 or num_drafted == 0
    assert num_drafted > 0
    assert (num_accepted > 0.7 * num_drafted) == (seed == 1)
    both._draft_model.cache.check_integrity()
    assert both._draft_model.cache.num_used == 0


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    other = write_tiny_folder(tmp_path / "other", TinyShape())
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, last = list(vocabulary)[10], list(vocabulary)[20]
    vocabulary[first], vocabulary[last] = vocabulary[last], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match=r"draft_model .* has another vocabulary than"):
        Engine.load(EngineConfig(model=str(path), draft_model=str(other)))


def test_a_prompt_in_tokens(engine: Engine) -> None:
    ids = tuple(engine.tokenize("def add(a, b):"))
    request = CompletionRequest("", prompt_ids=ids, sampling=SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(_complete(engine, request)[1]) == 4


@pytest.mark.parametrize(
    ("ids", "max_tokens", "message"),
    [
        ((1,) * 500, 13, "the prompt has 500 tokens and max_tokens is 13; the context holds 512"),
        ((1, 10**6), 3, "token id 1000000 is outside the vocabulary"),
        ((1, -1), 3, "token id -1 is outside the vocabulary"),
    ],
)
def test_a_prompt_in_tokens_that_cannot_be_used(
    engine: Engine, ids: tuple[int, ...], max_tokens: int, message: str
) -> None:
    request = CompletionRequest("", prompt_ids=ids, sampling=SamplingParams(max_tokens=max_tokens))
    num_free = engine.cache.pool.num_free
    with pytest.raises(RequestError, match=message):
        next(engine.generate(request))
    assert engine.cache.pool.num_free == num_free


def test_a_cache_smaller_than_a_context_is_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=8))
    with pytest.raises(ConfigError, match=r"kv_cache_mb is 1; a context of 2048 tokens takes \d+ MiB"):
        Engine.load(EngineConfig(model=str(path), kv_cache_mb=1, max_context_tokens=2048))


@pytest.mark.parametrize(("max_memory_mb", "expected_mb"), [(0, 32), (164, 19.7), (146, 1.7)])
def test_the_batch_profile_takes_memory_for_many_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_memory_mb: int, expected_mb: float
) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1))
    for user in ("engine.loading", "engine.machine.predict"):
        monkeypatch.setattr(f"{user}.DEFAULT_CACHE_BYTES", 2**20)
    monkeypatch.setattr("engine.loading.available_bytes", lambda: 2**34)
    monkeypatch.setattr("engine.loading.resident_bytes", lambda: 0)  # 144 MiB are kept for working
    config = EngineConfig(model=str(path), dtype="float32", max_context_tokens=256, max_memory_mb=max_memory_mb)
    sizes = []
    for profile in ("completion", "batch"):
        engine = Engine.load(replace(config, profile=profile))
        sizes.append(engine.model.storage.num_bytes / 2**20)
    assert sizes[0] == pytest.approx(1, abs=0.1)
    assert sizes[1] == pytest.approx(expected_mb, abs=0.2)  # a token takes 256 bytes; the weights 0.3 MB


def test_what_is_said_to_be_enough_memory_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1))
    taken = 777 * 2**20
    monkeypatch.setattr("engine.loading.resident_bytes", lambda: taken)
    config = EngineConfig(model=str(path), max_context_tokens=256, max_memory_mb=500)
    with pytest.raises(ConfigError, match=r"needs 1\.2 GB of memory, 0\.5 GB are allowed") as caught:
        Engine.load(config)
    (enough_mb,) = map(int, re.findall(r"set it to (\d+)", str(caught.value)))
    assert enough_mb < 1250
    for more in (0, 16 * 2**20):  # the process of another time
        taken = 777 * 2**20 + more
        Engine.load(replace(config, max_memory_mb=enough_mb))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dtype": "int3"}, ConfigError, "engine.dtype is 'int3'; it must be one of auto, bfloat16, float32"),
        ({"device": "tpu"}, ConfigError, "engine.device is 'tpu'"),
        ({"fim_family": "nope"}, CheckpointError, "'nope' is not a known prompt format"),
        ({"fim_family": "starcoder"}, CheckpointError, "needs the tokens <fim_prefix>"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, change: dict[str, str], error: type[Exception], message: str) -> None:
    path = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(num_layers=1))
    with pytest.raises(error, match=message):
        Engine.load(EngineConfig(**{"model": str(path), **change}))  # type: ignore[arg-type]


def test_cuda_is_refused_where_there_is_none(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(ConfigError, match="torch finds no CUDA device"):
        Engine.load(EngineConfig(model=str(tmp_path), device="cuda"))


def test_other_texts_only_make_it_faster(engine: Engine) -> None:
    num_accepted = [0, 0]
    for prefix in ("for x in y:\n    ", "def f(", "class A:\n    def g(self):\n        "):
        request = _request(prefix, "\n", max_tokens=24)
        text, ids, plain = _complete(engine, request)
        told = _complete(engine, replace(request, corpus=("nothing of it\n", prefix + text + "\n")))
        assert told[:2] == (text, ids)
        num_accepted[0] += plain.usage.accepted_tokens
        num_accepted[1] += told[2].usage.accepted_tokens
    assert num_accepted[1] > num_accepted[0]
