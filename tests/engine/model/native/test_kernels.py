"""The products of the compiled kernels against float products, and that no row knows of another."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from engine.checkpoint.groups import GROUP, Groups, round_to_groups
from engine.model.linear import _hadamard
from engine.model.native.decoder import Workspace
from engine.model.native.forms import TILE, Form, interleaved, pack_int4, pack_int8
from tests.support.native import native_config

pytestmark = pytest.mark.usefixtures("matrices")

_EPS = 1e-6
_Product = Callable[..., torch.Tensor]


@pytest.fixture
def product(native_library: ctypes.CDLL) -> _Product:
    def run(
        form: Form, x: torch.Tensor, norm: torch.Tensor | None = None, tiles: torch.Tensor | None = None
    ) -> torch.Tensor:
        struct, workspace = form.struct(), Workspace(native_config(hidden_size=form.inputs), len(x))
        call = workspace.describe(len(x))
        wanted = torch.arange(form.outputs // TILE) if tiles is None else tiles
        guarded = torch.full((len(x) + 2, form.outputs), torch.nan)  # a row before and a row behind
        native_library.midline_product(
            *(ctypes.addressof(struct), ctypes.addressof(call), x.data_ptr()),
            *(None if norm is None else norm.data_ptr(), _EPS, guarded[1:].data_ptr(), wanted.data_ptr(), len(wanted)),
        )
        assert guarded[0].isnan().all() and guarded[-1].isnan().all()
        return guarded[1:-1]

    return run


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _form(kind: str, outputs: int, inputs: int, bias: torch.Tensor | None = None) -> Form:
    weight = _random(1, outputs, inputs)
    return pack_int8(weight, bias) if kind == "int8" else pack_int4(round_to_groups(weight), bias)


def _integers(seed: int, *shape: int) -> torch.Tensor:
    """From -127 to 127, of which the largest is in each group of 32."""
    out = torch.randint(-127, 128, shape, generator=torch.Generator().manual_seed(seed)).float()
    out[:, ::GROUP] = 127.0
    return out


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """The rotation is its own inverse."""
    return (x.view(-1, 64) @ _hadamard(64)).view(x.shape)


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(32, 64), (200, 320), (96, 4864)])
def test_int8_is_close_to_the_float_product(product: _Product, rows: int, outputs: int, inputs: int) -> None:
    weight, bias, x = _random(1, outputs, inputs), _random(2, outputs), _random(3, rows, inputs)
    form = pack_int8(weight, bias)
    out = product(form, x)
    assert form.outputs == -(-outputs // TILE) * TILE
    assert 0.001 < _error(out[:, :outputs], x @ weight.T + bias) < 0.017
    assert not out[:, outputs:].any()


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 300])
def test_int8_has_the_very_sums_of_its_integers(product: _Product, rows: int) -> None:
    """Weights and activations that rounding leaves as they are give the product exactly."""
    weight, x = _integers(1, 96, 320) / 4, _integers(2, rows, 320) * 2
    weight[5], x[rows // 2] = 0.0, 0.0
    assert torch.equal(product(pack_int8(_rotated(weight), None), _rotated(x)), x @ weight.T)


def test_sums_of_long_rows_of_the_largest_numbers_are_exact(product: _Product) -> None:
    inputs = 32768
    weight, x = torch.full((32, inputs), 127.0), torch.full((2, inputs), 127.0)
    weight[1], x[1] = -127.0, -127.0
    expected = (x.double() @ weight.double().T).float()
    assert torch.equal(product(pack_int8(_rotated(weight), None), _rotated(x)), expected)


@pytest.mark.parametrize("rows", [1, 5, 6, 7, 300])
def test_int4_is_the_product_with_the_groups_as_they_stand(product: _Product, rows: int) -> None:
    """Exactly so for activations that rounding leaves as they are, up to the order of float sums."""
    groups, bias = round_to_groups(_random(1, 96, 320)), _random(2, 96)
    stored = Groups(groups.values, groups.scales.half().float(), groups.minima.half().float())
    form, x = pack_int4(groups, bias), _integers(3, rows, 320)
    assert _error(product(form, x), x @ stored.dequantised().T + bias) < 1e-6
    x = _random(4, rows, 320)
    assert 0.001 < _error(product(form, x), x @ groups.dequantised().T + bias) < 0.008


def test_int4_of_every_value_in_every_place(product: _Product) -> None:
    values = (torch.arange(64 * 128, dtype=torch.int32) % 251 % 16).to(torch.uint8).view(64, 128)
    steps = torch.arange(64 * 4).view(64, 4).float()
    groups = Groups(values, steps - 100.0, 50.0 - steps)
    for column in (0, 3, 4, 15, 16, 31, 32, 127):
        x = torch.zeros(1, 128)
        x[0, column] = 127.0
        assert torch.equal(product(pack_int4(groups, None), x)[0], groups.dequantised()[:, column] * 127)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_every_number_of_rows_gives_each_row_the_bits_it_gets_alone(
    product: _Product, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, x, norm = _form(kind, 96, 320, _random(2, 96)), _random(3, 40, 320), _random(4, 320)
    alone = torch.cat([product(form, row.unsqueeze(0), norm) for row in x])
    for num_threads, nums_rows in ((1, range(1, 41)), (2, (1, 7, 40)), (5, (2, 33))):  # 5: more than there are tiles
        monkeypatch.setattr(torch, "get_num_threads", lambda num=num_threads: num)
        for rows in nums_rows:
            assert torch.equal(product(form, x[:rows], norm), alone[:rows])
            assert torch.equal(product(form, x[40 - rows :], norm), alone[40 - rows :])


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_matrices_of_many_rows_give_the_bits_of_vectors(
    product: _Product, native_library: ctypes.CDLL, matrices: bool, kind: str
) -> None:
    form, x = _form(kind, 96, 320, _random(2, 96)), _random(3, 600, 320)
    found = [product(form, x[:rows]) for rows in (4, 5, 13, 16, 17, 31, 32, 33, 64, 600)]
    native_library.midline_use_matrices(not matrices)
    others = [product(form, x[:rows]) for rows in (4, 5, 13, 16, 17, 31, 32, 33, 64, 600)]
    native_library.midline_use_matrices(matrices)
    assert all(map(torch.equal, found, others))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_what_lies_beside_a_row_changes_nothing(product: _Product, kind: str) -> None:
    form, x = _form(kind, 64, 128), _random(3, 9, 128)
    expected = product(form, x)[4]
    for wild in (0.0, 1e30, 1e-30, torch.inf, torch.nan):
        beside = torch.full_like(x, wild)
        beside[4] = x[4]
        assert torch.equal(product(form, beside)[4], expected)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_listed_tiles_are_those_of_the_whole_product_and_nothing_else_is_written(product: _Product, kind: str) -> None:
    form, x, norm = _form(kind, 32 * 9, 128, _random(2, 32 * 9)), _random(3, 11, 128), _random(4, 128)
    whole = product(form, x, norm).view(11, 9, TILE)
    for tiles in ([], [0], [8], [7, 2, 3], list(range(9))):
        out = product(form, x, norm, torch.tensor(tiles, dtype=torch.int64)).view(11, 9, TILE)
        others = [tile for tile in range(9) if tile not in tiles]
        assert torch.equal(out[:, tiles], whole[:, tiles])
        assert out[:, others].isnan().all()


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_normalisation(product: _Product, kind: str) -> None:
    form, x, norm = _form(kind, 64, 320), _random(3, 9, 320) * 7, _random(4, 320)
    by_torch = torch.nn.functional.rms_norm(x, (320,), norm, _EPS)
    assert _error(product(form, x, norm), product(form, by_torch)) < 1e-3  # a few numbers are rounded the other way
    tiny = x * 1e-5  # where eps counts
    by_torch = torch.nn.functional.rms_norm(tiny, (320,), norm, _EPS)
    assert _error(product(form, tiny, norm), product(form, by_torch)) < 1e-3


def test_outliers_spoil_no_row(product: _Product) -> None:
    """One number in hundreds that is a hundred times the others, as before down projections."""
    weight, x = _random(1, 64, 640), _random(3, 9, 640)
    x[:, 7::64] *= 10.0
    x[:, 100] *= 100.0
    plain = x.clone()
    scale = plain.abs().amax(dim=1, keepdim=True) / 127
    plain = (plain / scale).round() * scale
    expected = x @ weight.T
    error = _error(product(pack_int8(weight, None), x), expected)
    assert error < 0.03
    assert error < 0.6 * _error(plain @ weight.T, expected)  # better than without rotation


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rows_of_nothing_and_of_one_sign(product: _Product, kind: str) -> None:
    weight = torch.ones(32, 64)
    form = pack_int8(weight, None) if kind == "int8" else pack_int4(round_to_groups(weight), None)
    for value in (0.0, 3.0, -3.0, 1e-15):
        assert torch.allclose(product(form, torch.full((7, 64), value)), torch.tensor(64 * value), rtol=1e-3, atol=0.0)
    assert product(form, torch.empty(0, 64)).shape == (0, 32)


def test_a_large_matrix_is_packed_in_parts(product: _Product, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = _random(1, 9000, 128), _random(2, 3, 128)  # 8,192 outputs at a time
    form = pack_int8(weight.bfloat16(), None)
    last = pack_int8(weight[8992:].bfloat16(), None)
    assert torch.equal(product(form, x)[:, 8992:9000], product(last, x)[:, :8])
    assert _error(product(form, x)[:, :9000], x @ weight.T) < 0.017


def test_gates_stand_beside_their_partners() -> None:
    rows = torch.arange(128).view(128, 1).expand(128, 3)  # 64 gates, 64 partners
    ordered = interleaved(rows)[:, 0].view(-1, 2, 16)
    assert torch.equal(ordered[:, 0].flatten(), torch.arange(64))
    assert torch.equal(ordered[:, 1].flatten(), torch.arange(64, 128))
    assert torch.equal(interleaved(rows[:, 0]), interleaved(rows)[:, 0])


@pytest.mark.parametrize(
    "change",
    [
        {"outputs": 128},
        {"inputs": 128},
        {"inputs": 32},
        {"outputs": 48},
        {"kind": 1},
        {"kind": 2},
        {"data": torch.zeros(64 * 64)},
        {"scales": None},
        {"scales": torch.ones(64, dtype=torch.float64)},
        {"bias": torch.ones(63)},
        {"data": torch.zeros(64 * 128, dtype=torch.uint8)[::2]},
    ],
)
def test_a_form_whose_tensors_are_too_small_cannot_be_made(change: dict[str, object]) -> None:
    right = {
        "kind": 0,
        "outputs": 64,
        "inputs": 64,
        "data": torch.zeros(64 * 64, dtype=torch.uint8),
        "scales": torch.ones(64),
        "bias": torch.ones(64),
    }
    Form(**right)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"no weights of kind|are incomplete"):
        Form(**{**right, **change})  # type: ignore[arg-type]


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="not Linux")
def test_matrices_are_used_where_the_processor_has_them(native_library: ctypes.CDLL, matrices: bool) -> None:
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    assert native_library.midline_use_matrices(True) == ("amx_int8" in flags)
    native_library.midline_use_matrices(matrices)
