"""Text out of byte pieces: the same whatever the pieces, stop strings and line rules included."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.literals import FAMILIES
from engine.request import FinishReason, SamplingParams
from engine.textstream import TextStream


def _run(text: bytes, params: SamplingParams, cuts: list[int], elapsed_ms: float = 0.0) -> tuple[str, str]:
    """Feed ``text`` cut at ``cuts``; return the whole answer and the reason."""
    stream, out = TextStream(params), ""
    borders = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(borders):
        out += stream.push(text[start:end], elapsed_ms)
        if stream.finish_reason:
            return out, stream.finish_reason.value
    return out + stream.flush(), "none"


_texts = st.text(alphabet="ab\n é😀", max_size=20).map(str.encode)
_stops = st.lists(st.text(alphabet="ab\né", min_size=1, max_size=3), max_size=3).map(tuple)


@settings(max_examples=300, derandomize=True)
@given(text=_texts, stops=_stops, cuts=st.lists(st.integers(0, 60), max_size=10))
def test_no_stop_string_is_ever_handed_out_whatever_the_pieces(
    text: bytes, stops: tuple[str, ...], cuts: list[int]
) -> None:
    whole = text.decode()
    found = min((whole.find(stop) for stop in stops if stop in whole), default=None)
    out, reason = _run(text, SamplingParams(stop=stops), cuts)
    if found is None:
        assert (out, reason) == (whole, "none")
    else:
        # a longer stop string may begin earlier but end later than a piece shows; the text is then shorter
        assert reason == "stop"
        assert whole.startswith(out)
        assert not any(stop in out for stop in stops)


def test_the_earliest_stop_string_wins_and_is_named() -> None:
    stream = TextStream(SamplingParams(stop=("\n\n", "end")))
    assert stream.push(b"a end\n\n", 0.0) == "a "
    assert stream.stop_string == "end"


def test_half_a_stop_string_is_held_back_and_given_at_the_end() -> None:
    stream = TextStream(SamplingParams(stop=("<END>",)))
    assert stream.push(b"x<EN", 0.0) == "x"
    assert stream.flush() == "<EN"


def test_half_a_character_is_held_back() -> None:
    stream, smile = TextStream(SamplingParams()), "😀".encode()
    assert stream.push(smile[:2], 0.0) == ""
    assert stream.push(smile[2:], 0.0) == "😀"
    assert TextStream(SamplingParams()).push(b"\xff", 0.0) == "\ufffd"


def test_the_time_limit_never_cuts_a_line() -> None:
    stream = TextStream(SamplingParams(time_limit_ms=100.0))
    assert stream.push(b"a\nb", 50.0) == "a\nb"
    assert stream.push(b"c", 500.0) == "c"
    assert stream.finish_reason is None
    assert stream.push(b"d\ne", 600.0) == "d\n"
    assert stream.finish_reason is FinishReason.TIME


@settings(max_examples=100, derandomize=True)
@given(cuts=st.lists(st.integers(0, 60), max_size=12))
def test_a_block_ends_where_the_indentation_falls(cuts: list[int]) -> None:
    text = b"if x:\n        y()\n\n        z()\n    w()\nv()\n"
    out, reason = _run(text, SamplingParams(min_indent=8), cuts)
    assert reason == "stop"
    assert out.rstrip() == "if x:\n        y()\n\n        z()"
    out, _ = _run(text, SamplingParams(min_indent=4), cuts)
    assert out.rstrip().endswith("    w()")


@settings(max_examples=50, derandomize=True)
@given(cuts=st.lists(st.integers(0, 60), max_size=12))
def test_lines_for_a_preprocessor_end_no_block(cuts: list[int]) -> None:
    text = b"a();\n#ifdef B\n    b();\n  #endif\n    c();\n}\n#define D\n"
    out, reason = _run(text, SamplingParams(min_indent=4, outdented="#"), cuts)
    assert (out, reason) == ("a();\n#ifdef B\n    b();\n  #endif\n    c();\n", "stop")
    out, reason = _run(text, SamplingParams(min_indent=4), cuts)
    assert (out, reason) == ("a();\n", "stop")


def test_tabs_count_as_indentation() -> None:
    out, reason = _run(b"a\n\tb\nc", SamplingParams(min_indent=4), [])
    assert (out, reason) == ("a\n\tb\n", "stop")


_TEXTS = {
    "python": '''\
x = 1  # it's """ here
    s = "it's \'\'\'" + '"""'
    return f"""
<p class="{x}">
  it's \\""" a # b
"""
''',
    "javascript": """\
f('`'); // it's `
    /* `
     it's */ g(/'/);
    return `
<p>${x} \\`
it's // a
`;
""",
    "go": """\
f('`', "`") // `
    x := `\\`
    y := `
select "it's
`
""",
    "rust": """\
f('"', b'\\'', "\\"", x as &'a str);
    let s = r#"
<p class="a">it's</p>
"#;
    let t = "
a \\" b
";
""",
    "java": '''\
f('"', "\\"");
    String s = """
it's \\""" "a"
""";
''',
    "cpp": """\
f('"', "R\\"(", "a\\
b");
    auto s = R"(
it's "a\\
)";
""",
}


def test_all_families_are_tried() -> None:
    assert set(_TEXTS) == set(FAMILIES)


@pytest.mark.parametrize(("literals", "text"), _TEXTS.items())
@settings(max_examples=100, derandomize=True)
@given(cuts=st.lists(st.integers(0, 150), max_size=12))
def test_lines_inside_a_string_end_no_block(literals: str, text: str, cuts: list[int]) -> None:
    params = SamplingParams(min_indent=4, literals=literals)
    assert _run(f"{text}    end\nx\n".encode(), params, cuts) == (f"{text}    end\n", "stop")
    cut, reason = _run(text.encode(), SamplingParams(min_indent=4), cuts)
    assert text.startswith(cut)
    assert (reason, len(cut) < len(text)) == ("stop", True)


@settings(max_examples=300, derandomize=True)
@given(
    text=st.text(alphabet="a'\"`#/*\\: \n", max_size=40).map(str.encode),
    literals=st.sampled_from(["", *FAMILIES]),
    has_labels=st.booleans(),
    cuts=st.lists(st.integers(0, 60), max_size=10),
)
def test_strings_and_labels_are_the_same_whatever_the_pieces(
    text: bytes, literals: str, has_labels: bool, cuts: list[int]
) -> None:
    params = SamplingParams(min_indent=2, literals=literals, has_labels=has_labels)
    assert _run(text, params, cuts)[0] == _run(text, params, [])[0]


def test_a_string_that_never_ends_ends_nothing() -> None:
    text = "a = '''\nb\nc\n"
    assert _run(text.encode(), SamplingParams(min_indent=4, literals="python"), []) == (text, "none")


@pytest.mark.parametrize(
    ("text", "kept", "reason"),
    [
        ("goto out;\nout:\n    f();\n}\n", "goto out;\nout:\n    f();\n", "stop"),
        ("goto out;\n out :  \n\n    f();\n}\n", "goto out;\n out :  \n\n    f();\n", "stop"),
        ("a:\nb:\n    f();", "a:\nb:\n    f();", "none"),
        ("f();\nout:\n\n}\n", "f();\n", "stop"),
        ("f();\nout:\n", "f();\nout:\n", "none"),
        ("f();\nout:", "f();\nout:", "none"),
        ("f();\nint g(void)\n", "f();\n", "stop"),
        ("f();\nout: g();\n", "f();\n", "stop"),
        ("f();\na::b();\n", "f();\n", "stop"),
        ("f();\ndefault:\n    g();\n", "f();\n", "stop"),
        ("f();\npublic:\n    g();\n", "f();\n", "stop"),
        ("f();\npublic_exit:\n    g();\n", "f();\npublic_exit:\n    g();\n", "none"),
    ],
)
@settings(max_examples=50, derandomize=True)
@given(cuts=st.lists(st.integers(0, 60), max_size=12))
def test_a_label_ends_no_block_if_the_block_goes_on(text: str, kept: str, reason: str, cuts: list[int]) -> None:
    params = SamplingParams(min_indent=4, has_labels=True, outdented="#")
    assert _run(text.encode(), params, cuts) == (kept, reason)


def test_what_could_have_become_a_label_is_decided_at_the_end() -> None:
    stream = TextStream(SamplingParams(min_indent=4, has_labels=True))
    assert (stream.push(b"f();\nout", 0.0), stream.finish_reason) == ("f();\n", None)
    assert (stream.flush(), stream.finish_reason) == ("", FinishReason.STOP)
    stream = TextStream(SamplingParams(min_indent=4, has_labels=True, stop=("END",)))
    assert [stream.push(piece, 0.0) for piece in (b"f();\nou", b"t:\nE", b"ND")] == ["f();\n", "", "out:\n"]
    assert stream.finish_reason is FinishReason.STOP
