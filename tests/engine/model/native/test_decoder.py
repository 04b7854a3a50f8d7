"""The compiled decoder against the float32 one, and that its rows are the same to the last bit however they come."""

import math
import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.storage import KVStorage
from engine.checkpoint.source import open_checkpoint
from engine.errors import CheckpointError
from engine.model.batch import Span
from engine.model.best import Best, best_of, joined
from engine.model.layers import Rotary, rope_frequencies, rotate
from engine.model.load import load_decoder
from engine.model.native.decoder import BLOCK_TOKENS, NativeDecoder, is_supported
from engine.model.native.forms import pack_int8
from engine.model.native.load import load_native_decoder
from tests.support.native import NATIVE_SHAPE, NativeRig, native_config
from tests.support.tiny_checkpoints import TinyShape, write_tiny_folder, write_tiny_gguf

pytestmark = pytest.mark.usefixtures("matrices")

_CPU = torch.device("cpu")
_F32, _Q4_0, _Q8_0 = GGMLQuantizationType.F32, GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


@st.composite
def _shapes(draw: st.DrawFn) -> TinyShape:
    num_kv_heads = draw(st.sampled_from([1, 2, 3]))
    return TinyShape(
        architecture=draw(st.sampled_from(["qwen2", "llama"])),
        num_layers=draw(st.sampled_from([1, 2])),
        hidden_size=draw(st.sampled_from([64, 128, 320])),
        ffn_size=draw(st.sampled_from([64, 192, 448])),
        num_heads=num_kv_heads * draw(st.sampled_from([1, 2, 3, 7])),
        num_kv_heads=num_kv_heads,
        own_head_dim=draw(st.sampled_from([64, 128])),
        is_tied=draw(st.booleans()),
        has_bias=draw(st.booleans()),
        num_padding_tokens=draw(st.sampled_from([0, 1, 25])),
    )


@dataclass
class _Text:
    """A sequence, and which blocks it lies in."""

    token_ids: list[int]
    blocks: list[int]

    def span(self, start: int, end: int) -> Span:
        return Span(self.token_ids[start:end], start, self.blocks)


def _texts(pick: random.Random, lengths: list[int], num_blocks: int = 40) -> list[_Text]:
    free = list(range(1, num_blocks))
    pick.shuffle(free)
    texts = []
    for length in lengths:
        count = -(-length // BLOCK_TOKENS)
        texts.append(_Text([pick.randrange(250) for _ in range(length)], free[:count]))
        del free[:count]
    return texts


def _float32_hidden(path: Path, token_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states and logits of the float32 decoder."""
    checkpoint = open_checkpoint(path)
    decoder, _ = load_decoder(checkpoint, torch.float32, _CPU, 320)
    storage = KVStorage(checkpoint.config, 22, BLOCK_TOKENS, torch.float32, _CPU)
    storage.clear(list(range(22)))
    span = Span(token_ids, 0, list(range(1, 22)))
    forward = decoder.start([span], storage)
    while not forward.is_done:
        forward.advance()
    hidden = forward.hidden(span, len(token_ids))
    return hidden, decoder.logits(hidden)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@settings(max_examples=16, derandomize=True, deadline=None)
@given(shape=_shapes(), seed=st.integers(0, 99), block_type=st.sampled_from([_F32, _Q4_0, _Q8_0]))
def test_any_shape_is_close_to_the_float32_decoder(
    tmp_path_factory: pytest.TempPathFactory, shape: TinyShape, seed: int, block_type: GGMLQuantizationType
) -> None:
    path = write_tiny_gguf(tmp_path_factory.mktemp("m") / "m.gguf", shape, seed, block_type=block_type)
    pick = random.Random(seed)
    (text,) = _texts(pick, [pick.choice([1, 2, 17, 64, 65, 130, 300])])
    hidden, logits = _float32_hidden(path, text.token_ids)
    # a file of four bits is computed with its own weights, so that only activations are rounded
    rig = NativeRig(path, "mixed")
    (found,) = rig.hidden(text.span(0, len(text.token_ids)))
    bound = 0.03 if block_type == _Q4_0 else 0.05
    assert 0.001 < _error(found, hidden) < bound
    found_logits = rig.decoder.logits(found)
    assert found_logits.shape == logits.shape
    assert _error(found_logits, logits) < bound
    assert [form.kind for form in rig.decoder.weights.layers[0].products] == [int(block_type == _Q4_0)] * 4


def test_int4_rounds_what_the_file_has_in_more_bits(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", NATIVE_SHAPE)
    (text,) = _texts(random.Random(1), [70])
    hidden, _ = _float32_hidden(path, text.token_ids)
    errors = {}
    for precision in ("int8", "int4"):
        rig = NativeRig(path, precision)
        errors[precision] = _error(rig.hidden(text.span(0, 70))[0], hidden)
        kinds = {form.kind for layer in rig.decoder.weights.layers for form in layer.products}
        assert kinds == {int(precision == "int4")}
        assert rig.decoder.weights.head.kind == 0
    assert errors["int8"] < 0.05 < errors["int4"] < 0.3


def test_int4_leaves_what_the_file_has_in_four_bits(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", NATIVE_SHAPE, block_type=_Q4_0)
    span = _texts(random.Random(1), [20])[0].span(0, 20)
    (mixed,), (int4,) = (NativeRig(path, precision).hidden(span) for precision in ("mixed", "int4"))
    assert torch.equal(int4, mixed)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(1, 1), (14, 2), (6, 3), (48, 1)])
def test_attention_is_that_of_the_heads(tmp_path: Path, head_dim: int, num_heads: int, num_kv_heads: int) -> None:
    """Rotated and rounded to bfloat16, in float64, for rows behind others that are there already."""
    shape = TinyShape(num_layers=1, num_heads=num_heads, num_kv_heads=num_kv_heads, own_head_dim=head_dim)
    rig = NativeRig(write_tiny_gguf(tmp_path / "m.gguf", shape), "int8")
    (text,) = _texts(random.Random(7), [150])
    heads, attended = [], []
    for start, end in ((0, 3), (3, 70), (70, 71), (71, 150)):
        rig.hidden(text.span(start, end))
        workspace = rig.decoder._workspace
        heads.append(workspace._floats[2][: end - start].view(end - start, -1, head_dim).clone())
        attended.append(workspace._floats[3][: end - start].clone())
    every = torch.cat(heads)
    frequencies = rope_frequencies(rig.decoder.config, None)
    tables = Rotary(frequencies, 150, torch.float32, _CPU).tables(torch.arange(150))
    query, key, value = every.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    parts = (rotate(query, *tables), rotate(key, *tables), value)
    query, key, value = (part.bfloat16().double().transpose(0, 1) for part in parts)
    key, value = (part.repeat_interleave(num_heads // num_kv_heads, dim=0) for part in (key, value))
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(0, 1).reshape(150, -1)
    errors = (torch.cat(attended) - expected).norm(dim=1) / expected.norm(dim=1)
    assert errors[0] == 0  # of one key, whose weight is 1
    assert errors.max() < 3e-3  # of weights that are rounded to bfloat16
    assert errors.mean() < 1.5e-3


def test_gates(tmp_path: Path) -> None:
    """With a down projection of zeros the rows behind the attention come out, which the gates are computed from."""
    rig = NativeRig(write_tiny_gguf(tmp_path / "m.gguf", TinyShape(num_layers=1, own_head_dim=64)), "int8")
    (layer,) = rig.decoder.weights.layers
    layer = replace(layer, down=pack_int8(torch.zeros(64, 128), None), ffn_norm=30 * layer.ffn_norm)  # large gates too
    gates = replace(rig.decoder.weights, layers=(layer,))
    rig.decoder = NativeDecoder(rig.decoder.config, gates, torch.zeros(320, 32))
    (x,) = rig.hidden(_texts(random.Random(8), [33])[0].span(0, 33))
    found = rig.decoder._workspace._floats[4].clone()
    head = NativeDecoder(
        rig.decoder.config, replace(gates, head=layer.gate_up, norm=layer.ffn_norm), torch.zeros(1, 32)
    )
    product = head.logits(x).view(33, -1, 2, 16)
    gate, up = product[:, :, 0].reshape(33, 128), product[:, :, 1].reshape(33, 128)
    assert gate.abs().max() > 60
    assert torch.allclose(found, F.silu(gate) * up, rtol=1e-5, atol=1e-30)


@settings(max_examples=30, derandomize=True, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_however_tokens_are_computed_their_logits_are_the_same_bits(rigs: list[NativeRig], seed: int) -> None:
    """Random pieces of random sequences in random order, some of them dropped on the way, in random blocks."""
    pick = random.Random(seed)
    rig = pick.choice(rigs)
    texts = _texts(pick, [pick.choice([1, 15, 16, 17, 40, 64, 65, 128, 129, 150]) for _ in range(pick.randint(1, 4))])
    expected = []
    for text in texts:
        rig.forget()
        expected += rig.logits(text.span(0, len(text.token_ids)))
    rig.forget()
    num_done = [0] * len(texts)
    while any(num < len(text.token_ids) for num, text in zip(num_done, texts, strict=True)):
        going = [i for i, text in enumerate(texts) if num_done[i] < len(text.token_ids)]
        chosen = pick.sample(going, pick.randint(1, len(going)))
        spans = {}
        for i in chosen:
            left = len(texts[i].token_ids) - num_done[i]
            spans[i] = texts[i].span(num_done[i], num_done[i] + min(left, pick.choice([1, 1, 3, 8, 33, 150])))
        forward = rig.start(*spans.values())
        forward.advance()
        kept = pick.sample(chosen, pick.randint(1, len(chosen))) if pick.random() < 0.4 else chosen
        if kept != chosen:
            forward.keep([spans[i] for i in kept])
        while not forward.is_done:
            forward.advance()
        for i in kept:
            num_rows = pick.randint(1, len(spans[i].token_ids))
            end = spans[i].end
            found = rig.decoder.logits(forward.hidden(spans[i], num_rows))
            assert torch.equal(found, expected[i][end - num_rows : end])
            num_done[i] = end


@pytest.fixture(scope="module")
def rigs(native_library: object, tmp_path_factory: pytest.TempPathFactory) -> list[NativeRig]:
    folder = tmp_path_factory.mktemp("models")
    wide = TinyShape("llama", hidden_size=128, num_heads=3, num_kv_heads=1, own_head_dim=128, ffn_size=192)
    seven = TinyShape(hidden_size=64, num_heads=14, own_head_dim=64)
    paths = [write_tiny_gguf(folder / f"{i}.gguf", shape) for i, shape in enumerate((NATIVE_SHAPE, wide, seven))]
    return [NativeRig(path, precision) for path in paths for precision in ("int8", "int4")]


def test_threads_change_nothing(rigs: list[NativeRig], monkeypatch: pytest.MonkeyPatch) -> None:
    for rig in rigs:
        texts = _texts(random.Random(3), [300, 1, 200])  # long, so that threads overtake each other
        spans = [text.span(0, len(text.token_ids)) for text in texts]
        expected = torch.cat(rig.logits(*spans))
        for num_threads in (1, 3, 16):
            with monkeypatch.context() as patch:
                patch.setattr(torch, "get_num_threads", lambda num=num_threads: num)
                rig.decoder._workspace.num_rows = 0  # so that it is made anew
                assert torch.equal(torch.cat(rig.logits(*spans)), expected)
        rig.decoder._workspace.num_rows = 0


def test_a_draft_that_was_wrong_leaves_nothing_behind(rigs: list[NativeRig]) -> None:
    for rig in rigs:
        (text,) = _texts(random.Random(4), [80])
        (expected,) = rig.logits(text.span(0, 80))
        rig.forget()
        wrong = Span([7] * 30, 20, text.blocks)
        rig.hidden(text.span(0, 20))
        rig.hidden(wrong)
        (found,) = rig.logits(text.span(20, 80))
        assert torch.equal(found, expected[20:])


def test_a_pass_of_which_nobody_wants_anything(rigs: list[NativeRig]) -> None:
    text, other = _texts(random.Random(5), [20, 20])
    forward = rigs[0].start(text.span(0, 20), other.span(0, 3))
    assert (forward.num_rows, forward.num_keys) == (23, (23, 23))
    forward.advance()
    forward.keep([])
    assert forward.num_rows == 0
    while not forward.is_done:
        forward.advance()


def test_restricted_logits_are_those_of_all_and_minus_infinity(rigs: list[NativeRig]) -> None:
    for rig in rigs:
        hidden = torch.cat(rig.hidden(*(text.span(0, 7) for text in _texts(random.Random(6), [7]))))
        whole = rig.decoder.logits(hidden)
        size = rig.decoder.config.vocab_size
        assert whole.shape == (7, size)
        assert size % 32, "the last tile is not full"
        for ids in ([0], [size - 1], [33, 32, 31, 33], [5, 100, 300]):
            found = rig.decoder.logits(hidden, torch.tensor(ids))
            assert torch.equal(found[:, ids], whole[:, ids])
            is_whole = torch.isfinite(found).all(dim=0)
            assert torch.equal(found[:, is_whole], whole[:, is_whole])
            assert (found[:, ~is_whole] == -torch.inf).all()
            assert (~is_whole).sum() > size / 2


@pytest.mark.parametrize("num_rows", [1, 2, 9, 70])
def test_the_best_tokens_are_those_of_all_logits_whatever_is_beside_them(rigs: list[NativeRig], num_rows: int) -> None:
    for rig in rigs:
        size = rig.decoder.config.vocab_size
        hidden = torch.randn(
            num_rows, rig.decoder.config.hidden_size, generator=torch.Generator().manual_seed(num_rows)
        )
        for num_tokens in (1, 16, 31, 33, size - 1, size):
            whole = best_of(rig.decoder.logits(hidden)[:, :num_tokens])
            found = rig.decoder.best(hidden, num_tokens)
            assert found.token_ids == whole.token_ids
            assert found.logprobs == pytest.approx(whole.logprobs, abs=2e-5)
            alone = [rig.decoder.best(row.unsqueeze(0), num_tokens) for row in hidden[:3]]
            assert joined(alone) == Best(found.token_ids[:3], found.logprobs[:3])
            rows = range(0, num_rows, 4)
            kept = rig.decoder.best(hidden, num_tokens, rows)
            assert kept == found
            assert list(kept.logits) == list(rows)
            for row, logits in kept.logits.items():
                assert torch.equal(logits, rig.decoder.logits(hidden)[row, :num_tokens])


def test_of_equal_tokens_the_first_is_the_best(rigs: list[NativeRig]) -> None:
    decoder = rigs[0].decoder
    weight = torch.randn(40, decoder.config.hidden_size, generator=torch.Generator().manual_seed(1)).repeat(9, 1)
    config, weights = replace(decoder.config, vocab_size=360), replace(decoder.weights, head=pack_int8(weight, None))
    repeating = NativeDecoder(config, weights, torch.zeros(1, 1))
    hidden = torch.randn(50, config.hidden_size, generator=torch.Generator().manual_seed(2))
    found = repeating.best(hidden, 360)
    assert max(found.token_ids) < 40 and len(set(found.token_ids)) > 5
    assert found.logprobs == pytest.approx([p - math.log(9) for p in repeating.best(hidden, 40).logprobs], abs=1e-4)


def test_scores_too_large_for_an_exponential(rigs: list[NativeRig]) -> None:
    decoder = rigs[0].decoder
    norm = decoder.weights.norm * 3000
    loud = NativeDecoder(decoder.config, replace(decoder.weights, norm=norm), torch.zeros(1, 1))
    hidden = torch.randn(5, decoder.config.hidden_size, generator=torch.Generator().manual_seed(3))
    whole, found = best_of(loud.logits(hidden)), loud.best(hidden, decoder.config.vocab_size)
    assert loud.logits(hidden).max() > 1000
    assert found.token_ids == whole.token_ids
    assert found.logprobs == pytest.approx(whole.logprobs, abs=1e-3)


def test_hidden_states_in_any_memory(rigs: list[NativeRig]) -> None:
    """Rows that do not lie side by side."""
    hidden = torch.randn(6, 2 * rigs[0].decoder.config.hidden_size)[::2, ::2]
    assert torch.equal(rigs[0].decoder.logits(hidden), rigs[0].decoder.logits(hidden.clone().contiguous()))


def test_what_would_crash_is_refused(rigs: list[NativeRig]) -> None:
    rig = rigs[0]
    with pytest.raises(ValueError, match="position 320 is beyond the 320"):
        rig.start(Span([1, 2], 319, list(range(1, 25))))
    for block_tokens, dtype in ((4, torch.bfloat16), (16, torch.float32)):
        storage = KVStorage(rig.decoder.config, 9, block_tokens, dtype, _CPU)
        with pytest.raises(ValueError, match="must be bfloat16 in blocks of 16"):
            rig.decoder.start([Span([1], 0, [1])], storage)
    with pytest.raises(IndexError):
        rig.start(Span([1] * 17, 0, [1]))  # a second block is not there
    with pytest.raises(IndexError):
        rig.start(Span([10**6], 0, [1]))


@pytest.mark.parametrize(
    ("sizes", "is_right"),
    [
        ({}, True),
        ({"num_heads": 14, "num_kv_heads": 2, "hidden_size": 896, "ffn_size": 4864}, True),
        ({"num_heads": 12, "num_kv_heads": 2, "head_dim": 128, "hidden_size": 1536, "ffn_size": 8960}, True),
        ({"num_heads": 9, "num_kv_heads": 3, "hidden_size": 576, "ffn_size": 1536}, True),
        ({"num_heads": 64}, True),
        ({"num_heads": 65}, False),
        ({"head_dim": 32, "num_heads": 2}, False),
        ({"head_dim": 96}, False),
        ({"hidden_size": 96}, False),
        ({"ffn_size": 96}, False),
        ({"vocab_size": 33}, True),
    ],
)
def test_supported_shapes(sizes: dict[str, int], is_right: bool) -> None:
    assert is_supported(native_config(**sizes)) == is_right


def test_misshapen_tensors_are_refused_before_anything_is_computed(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path / "m", NATIVE_SHAPE)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"intermediate_size": 128', '"intermediate_size": 256'))
    with pytest.raises(CheckpointError, match=r"gate_up.weight has shape .* the configuration implies"):
        load_native_decoder(open_checkpoint(folder), folder, "int8", 64)
