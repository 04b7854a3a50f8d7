"""What holds for every kind of hole in any text of any language."""

from hypothesis import given, settings
from hypothesis import strategies as st

from lsp_server.bulk.grammars import LANGUAGES
from lsp_server.bulk.holes import KINDS, Hole, KindOptions
from lsp_server.bulk.select import without_overlaps
from tests.support.bulk_sources import source_text

_SCRIPT = """export class A {
  constructor() {}
  f(a) { throw new Error("not implemented"); }
  // FILL
  #g() {
    // TODO: sort
  }
}
const h = () => { throw Error('TODO') }, x = <FILL>;
function k() {}
"""
_C = """int f(int x)
{
    return 0; // TODO
}
static void g(void) {}
struct S { int x; };
void h() { /* FILL */ }
"""
SAMPLES = {
    "python": """class A(B):
    @x
    def f(self): ...  # sort
    def g(self):
        '''Doc.'''
        # FILL
        raise NotImplementedError

def h():
    # TODO

x = <FILL>
def k():
""",
    "javascript": _SCRIPT,
    "typescript": _SCRIPT,
    "tsx": _SCRIPT,
    "go": """package a
func F() int { panic("TODO") } // sort
type (
\tT int
)
func (t *T) G() {
\t// FILL
\treturn <FILL>
}
func h(x int) {}
""",
    "rust": """#[x]
pub struct S;
impl S {
    pub fn f() -> u8 { todo!() }
    // FILL
    fn g() {
        // TODO
        0
    }
}
""",
    "java": """public class A {
    public int f() {
        // TODO Auto-generated method stub
        return 0;
    }
    int g() { throw new UnsupportedOperationException("Not supported yet."); }
    void h() { /* FILL */ }
}
""",
    "c": _C,
    "cpp": _C
    + """namespace n {
class A {
public:
    A() : x(1) {}
    int f() const { throw std::logic_error("not implemented"); }
};
template <class T>
T m(T x) {}
}
""",
}
PIECES = [
    *"\n{}()\"'#:;\t \r\0é😀\u2028\ud800",
    "\n    ",
    "/*",
    "*/",
    "//",
    '"""',
    "<FILL>",
    "# FILL",
    "pass",
    "@x\n",
    "() {",
]


@st.composite
def damaged(draw: st.DrawFn) -> tuple[str, str]:
    """A language and a text that is nearly in it."""
    language = draw(st.sampled_from(sorted(SAMPLES)))
    text = SAMPLES[draw(st.sampled_from([language, language, *sorted(SAMPLES)]))]
    for place, num_lost, piece in draw(
        st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30), st.sampled_from(PIECES)), max_size=5)
    ):
        start = place % (len(text) + 1)
        text = text[:start] + piece + text[start + num_lost :]
    return language, text


def holes_in(language: str, text: str) -> list[Hole]:
    source = source_text("a", text, language)
    return [hole for kind in KINDS.values() for hole in kind.find(source, KindOptions())]


def test_the_samples_have_holes_of_each_kind() -> None:
    for language, text in SAMPLES.items():
        assert {hole.kind for hole in holes_in(language, text)} == {"markers", "stubs", "docstrings"}, language


@settings(derandomize=True, max_examples=150, deadline=None)
@given(st.sampled_from(["", *LANGUAGES]), st.text(st.characters(), max_size=60))
def test_no_text_is_too_strange(language: str, text: str) -> None:
    assert all(hole.filled("@") for hole in holes_in(language, text))


@settings(derandomize=True, max_examples=1000, deadline=None)
@given(damaged())
def test_holes_lie_inside_the_text_and_do_not_overlap(given_text: tuple[str, str]) -> None:
    language, text = given_text
    found = holes_in(language, text)
    for hole in found:
        assert 0 <= hole.start <= hole.end <= len(text)
        assert hole.min_indent >= 0
        assert hole.max_tokens > 0
        assert "\n" not in hole.name
        before, replaced, behind = text[: hole.start], text[hole.start : hole.end], text[hole.end :]
        assert before + replaced + behind == text
        assert hole.filled("@") == before + hole.before_fill + "@" + hole.after_fill + behind
    holes = list(without_overlaps(found))
    assert set(map(id, holes)) <= set(map(id, found))
    assert _is_free_of_overlaps(holes)
    assert all(any(_overlap(hole, other) for other in holes) for hole in found if hole not in holes)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(damaged())
def test_the_holes_of_one_kind_come_from_top_to_bottom(given_text: tuple[str, str]) -> None:
    source = source_text("a", given_text[1], given_text[0])
    for kind in KINDS.values():
        starts = [hole.start for hole in kind.find(source, KindOptions())]
        assert starts == sorted(starts)


@settings(derandomize=True, max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4), st.booleans()), max_size=12))
def test_of_overlapping_holes_one_stays(places: list[tuple[int, int, bool]]) -> None:
    source = source_text("a", "x" * 20)
    given_holes = [Hole(source, "cursors" if by_cursor else "stubs", s, s + n) for s, n, by_cursor in places]
    kept = list(without_overlaps(given_holes))
    assert _is_free_of_overlaps(kept)
    for hole in given_holes:
        if hole not in kept:
            rivals = [other for other in kept if _overlap(hole, other)]
            assert any(_rank(other) <= _rank(hole) for other in rivals)


def _rank(hole: Hole) -> tuple[bool, int]:
    return hole.kind != "cursors", hole.start - hole.end


def _is_free_of_overlaps(holes: list[Hole]) -> bool:
    is_sorted = [(hole.start, hole.end) for hole in holes] == sorted((hole.start, hole.end) for hole in holes)
    return is_sorted and not any(_overlap(a, b) for i, a in enumerate(holes) for b in holes[:i])


def _overlap(one: Hole, other: Hole) -> bool:
    """Whether they share a character, or both are the same place, or one lies inside the other."""
    if (one.start, one.end) == (other.start, other.end):
        return True
    low, high = sorted([one, other], key=lambda hole: (hole.start, hole.end))
    return high.start < low.end
