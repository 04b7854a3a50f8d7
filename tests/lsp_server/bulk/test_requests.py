"""What is asked for a hole, and which requests count as the same."""

import dataclasses
import os
from pathlib import Path

import pytest

from engine.checkpoint.store import ResolvedModel
from engine.config import EngineConfig
from engine.request import FileContext, Lane, SamplingParams
from lsp_server.bulk.holes import Hole
from lsp_server.bulk.requests import (
    RequestOptions,
    key_of,
    model_identity,
    placed,
    request_for,
    second_attempt,
    shown,
)
from tests.support.bulk_holes import marker_holes, source_with

_OPTIONS = RequestOptions()


def _hole(tmp_path: Path, text: str = "def f(a):\n    return <FILL>  # so\n", **fields: object) -> Hole:
    (hole,) = marker_holes(source_with(tmp_path, "a.py", text), **fields)
    return hole


def test_one_line_ends_with_the_line_and_is_greedy(tmp_path: Path) -> None:
    request = request_for(_hole(tmp_path, max_tokens=32, min_indent=4), _OPTIONS)
    assert (request.prefix, request.suffix) == ("def f(a):\n    return ", "  # so\n")
    assert request.sampling == SamplingParams(max_tokens=32, temperature=0.0, stop=("\n",), stop_repetition=True)
    assert (request.lane, request.anchor, request.draft) == (Lane.BULK, None, "")


def test_a_block_ends_by_its_indentation_and_its_stops(tmp_path: Path) -> None:
    hole = _hole(tmp_path, is_block=True, min_indent=4, stop=('"""',), before_fill='"""', after_fill='"""')
    request = request_for(hole, _OPTIONS)
    assert (request.sampling.stop, request.sampling.min_indent) == (('"""',), 4)
    assert request.prefix.endswith('return """')
    assert request.suffix == '"""  # so\n'


@pytest.mark.parametrize(("name", "outdented"), [("a.c", "#"), ("a.hpp", "#"), ("a.cs", "#"), ("a.py", ""), ("a", "")])
def test_lines_for_the_preprocessor_end_no_block(tmp_path: Path, name: str, outdented: str) -> None:
    source = source_with(tmp_path, name, "f() {\n  <FILL>\n}\n")
    for fields in ({"is_block": True}, {"is_block": False}, {"is_block": True, "stop": ("*/",)}):
        (hole,) = marker_holes(source, **fields)
        expected = outdented if fields == {"is_block": True} else ""
        assert request_for(hole, _OPTIONS).sampling.outdented == expected


@pytest.mark.parametrize(
    ("name", "text", "literals", "has_labels"),
    [
        ("a.py", "def f():\n  <FILL>\n", "python", False),
        ("a.py", "x = '''\n  <FILL>\n'''\n", "", False),
        ("a.py", "x = '''\n\\''' '''\n# it's '''\n  <FILL>\n", "python", False),
        ("a.py", "x = '<FILL>'\n", "", False),
        ("a.ts", "f(`\n`, {\n  <FILL>\n});\n", "javascript", False),
        ("a.go", "func f() {\n\t<FILL>\n}\n", "go", True),
        ("a.go", "/* `\n<FILL> */", "", True),
        ("a.c", "int f() {\n\t<FILL>\n}\n", "", True),
        ("a.lua", "<FILL>\n", "", False),
        ("a", "<FILL>\n", "", False),
    ],
)
def test_lines_in_strings_and_labels_end_no_block(
    tmp_path: Path, name: str, text: str, literals: str, has_labels: bool
) -> None:
    source = source_with(tmp_path, name, text)
    for fields in ({"is_block": True}, {"is_block": False}, {"is_block": True, "stop": ("*/",)}):
        (hole,) = marker_holes(source, **fields)
        sampling = request_for(hole, _OPTIONS).sampling
        expected = (literals, has_labels) if fields == {"is_block": True} else ("", False)
        assert (sampling.literals, sampling.has_labels) == expected


def test_a_long_file_is_seen_through_windows_of_whole_lines(tmp_path: Path) -> None:
    lines = "".join(f"line_{number} = {number}\n" for number in range(2000))
    request = request_for(_hole(tmp_path, lines + "x = <FILL>\n" + lines), _OPTIONS)
    suffix = request.suffix or ""
    assert 4000 < len(request.prefix) <= _OPTIONS.max_prefix_chars
    assert request.prefix.startswith("line_")
    assert request.prefix.endswith("x = ")
    assert 1900 < len(suffix) <= _OPTIONS.max_suffix_chars
    assert suffix.startswith("\nline_0 = 0\n")


def test_the_second_attempt_is_drawn_from_request_and_seed(tmp_path: Path) -> None:
    request = request_for(_hole(tmp_path), _OPTIONS)
    second = second_attempt(request, 0, "first")
    assert second.sampling.temperature > 0
    assert dataclasses.replace(second, sampling=request.sampling, draft="", corpus=()) == request
    assert second == second_attempt(request, 0, "first")
    assert second.sampling.seed is not None
    other = dataclasses.replace(request, suffix="other")
    assert len({second_attempt(asked, seed, "").sampling.seed for asked in (request, other) for seed in (0, 1)}) == 4


def test_the_first_answer_makes_the_second_attempt_only_faster(tmp_path: Path) -> None:
    request = request_for(_hole(tmp_path), _OPTIONS)
    second, undrafted = second_attempt(request, 0, "first"), second_attempt(request, 0, "")
    assert (second.draft, second.corpus) == ("first", ("first",))
    assert second.sampling == undrafted.sampling
    assert key_of("model", second) == key_of("model", undrafted)


def test_a_key_follows_from_all_that_an_answer_does(tmp_path: Path) -> None:
    request = request_for(_hole(tmp_path), _OPTIONS, (FileContext("b.py", "x"),))
    key = key_of("model", request)
    assert key == key_of("model", request_for(_hole(tmp_path), _OPTIONS, (FileContext("b.py", "x"),)))
    assert len(key) == 64
    others = [
        dataclasses.replace(request, prefix="p"),
        dataclasses.replace(request, suffix=None),
        dataclasses.replace(request, extra=()),
        dataclasses.replace(request, extra=(FileContext("c.py", "x"),)),
        dataclasses.replace(request, anchor=0),
        dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, max_tokens=1)),
        dataclasses.replace(request, sampling=dataclasses.replace(request.sampling, seed=1)),
    ]
    assert len({key, key_of("other", request), *(key_of("model", other) for other in others)}) == len(others) + 2


def test_text_is_no_part_of_its_neighbour_in_a_key(tmp_path: Path) -> None:
    request = request_for(_hole(tmp_path), _OPTIONS)
    one, other = (dataclasses.replace(request, prefix=prefix, suffix=suffix) for prefix, suffix in ("ab", ("a", "b")))
    assert key_of("m", one) == key_of("m", other)
    assert key_of("m", dataclasses.replace(request, prefix="ab", suffix="")) != key_of("m", one)


def test_the_model_is_known_by_its_files_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"x" * 10)
    model, config = ResolvedModel("m", path, "auto"), EngineConfig(model="m")
    identity = model_identity(model, config)
    same = dataclasses.replace(config, model=str(path), num_threads=3, niceness=9, kv_cache_mb=700)
    assert model_identity(dataclasses.replace(model, name="n"), same) == identity
    for other in ({"precision": "int8"}, {"dtype": "float32"}, {"fim_family": "qwen"}, {"max_context_tokens": 999}):
        assert model_identity(model, dataclasses.replace(config, **other)) != identity  # type: ignore[arg-type]
    os.utime(path, ns=(1, 1))
    touched = model_identity(model, config)
    assert touched != identity
    path.write_bytes(b"x" * 11)
    os.utime(path, ns=(1, 1))
    assert model_identity(model, config) not in (identity, touched)


def test_a_folder_s_files_all_count(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    model = ResolvedModel("m", folder, "auto")
    identity = model_identity(model, EngineConfig())
    (folder / "model.safetensors").write_text("x")
    assert model_identity(model, EngineConfig()) != identity


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_hole_moves_with_the_text_around_it(tmp_path: Path, index: int) -> None:
    source = source_with(tmp_path, "a.py", "a = <FILL>\nb = <FILL>\nc = <FILL>\n")
    holes = marker_holes(source)
    texts = ["first", "", "three\nlines\nhere"]
    others = [(holes[other], texts[other]) for other in (2, 1, 0) if other != index]
    moved = placed(holes[index], others)
    expected = "a = first\nb = \nc = three\nlines\nhere\n"
    assert moved.filled(texts[index]) == expected
    assert moved.source.text[moved.start : moved.end] == "<FILL>"
    assert placed(holes[index], []) == holes[index]


@pytest.mark.parametrize("is_block", [True, False])
def test_nothing_stands_for_unwritten_code_before(tmp_path: Path, is_block: bool) -> None:
    first, hole = marker_holes(source_with(tmp_path, "a.py", "<FILL>\nx = <FILL>\n"))
    assert shown(hole, [(dataclasses.replace(first, is_block=is_block), "")]).prefix == "\nx = "
    assert shown(hole, [(first, "1")]).prefix == "1\nx = "
    empty = dataclasses.replace(first, end=first.start, is_block=True)
    assert shown(hole, [(empty, "")]).prefix == "<FILL>\nx = "


@pytest.mark.parametrize(
    ("between", "rest"),
    [
        ("\n}\n\nint g() {\n", "\n}\n"),
        ("\n}\n\n\n// g\nint g() {\n", "\n}\n\n"),
        ("\n}\nint g() {\n", "\n}\nint g() {\n"),
        (" }\nint g() { ", " }\n"),
        (" } int g() { ", ""),
    ],
)
def test_what_follows_ends_before_unwritten_code(tmp_path: Path, between: str, rest: str) -> None:
    source = source_with(tmp_path, "a.c", f"int f() {{ <FILL>{between}<FILL> }}\n")
    hole, other = marker_holes(source, is_block=True)
    assert shown(hole, [(other, "")]).suffix == rest
    assert shown(hole, [(other, "return 1;")]).suffix == f"{between}return 1; }}\n"
    inline = dataclasses.replace(other, is_block=False)
    assert shown(hole, [(inline, "")]).suffix == f"{between} }}\n"


def test_places_in_what_is_left_are_blank_and_others_forgotten(tmp_path: Path) -> None:
    source = source_with(tmp_path, "a.py", "a = <FILL>\nb = <FILL>\n\n<FILL>\nc = <FILL>\n")
    first, second, block, last = marker_holes(source)
    others = [(second, ""), (dataclasses.replace(block, is_block=True), ""), (last, "3")]
    assert shown(first, others).suffix == "\nb = \n"
