"""Workspaces whose right fills are known: what was cut out is found as a hole, and fits."""

from dataclasses import replace
from pathlib import Path

import pytest

from lsp_server.bench.bulk_workspace import HOLES_PER_FILE, MAX_TOKENS, Task, make_workspace
from lsp_server.bench.sessions import SourceFile
from lsp_server.bulk.fills import Fill, FillState

PYTHON = '''"""A cart."""

RATES = {"low": 0.07, "high": 0.19}


class Cart:
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.items: list[tuple[str, float]] = []
        self.discount_share = compute_share(owner, RATES)

    def total(self) -> float:
        """What all of it costs."""
        prices = [price for _, price in self.items]
        taxes = [price * RATES["high"] for price in prices]
        return sum(prices) + sum(taxes)

    def add(self, name: str, price: float) -> None:
        if price < 0:
            raise ValueError(f"the price of {name} is below zero")
        self.items.append((name, price))


def compute_share(owner: str, rates: dict[str, float]) -> float:
    # the longer the name, the better
    share = len(owner) / max(len(rate) for rate in rates)
    return min(1.0, share * rates["low"])


DEFAULT_CART = Cart(owner="nobody in particular")
LIMITS = tuple(range(3)) + tuple(
    range(5)
)
'''
OTHERS = {
    "javascript": "function area(w, h) {\n  const product = w * h;\n  log(`the area of ${w} and ${h}`, product);\n"
    "  log(`and that is all there is to say`);\n  return product;\n}\n",
    "typescript": "export function area(w: number, h: number): number {\n  const product: number = w * h;\n"
    "  console.log(product, w, h, 'are the numbers in question');\n  return product;\n}\n",
    "go": "package a\n\nfunc Area(w int, h int) int {\n\tproduct := w * h\n\tfmt.Println(product, w, h, \"numbers\")\n"
    "\tfmt.Println(\"and that is all there is\")\n\treturn product\n}\n",
    "rust": "fn area(w: u32, h: u32) -> u32 {\n    let product = w * h;\n    println!(\"{} {} {}\", product, w, h);\n"
    "    println!(\"and that is all\");\n    product\n}\n",
    "java": "class A {\n    int area(int w, int h) {\n        int product = w * h;\n"
    "        System.out.println(product + w);\n        System.out.println(product + h);\n        return product;\n"
    "    }\n}\n",
    "c": "int area(int w, int h) {\n    int product = w * h;\n    printf(\"%d %d %d numbers\\n\", product, w, h);\n"
    "    puts(\"and that is all\");\n    return product;\n}\n",
    "cpp": "int area(int w, int h) {\n    int product = w * h;\n    std::cout << product << w << h << std::endl;\n"
    "    std::cout << \"and that is all\";\n    return product;\n}\n",
}  # fmt: skip
_SUFFIXES = {"javascript": "js", "typescript": "ts", "go": "go", "rust": "rs", "java": "java", "c": "c", "cpp": "cpp"}


def _cart(name: str = "shop/cart.py") -> SourceFile:
    return SourceFile(name, "python", PYTHON)


def _fill(task: Task, text: str) -> Fill:
    return Fill(task.hole, FillState.FILLED, text)


def _restored(tasks: list[Task]) -> str:
    """The text of one file with the truth in all of its holes."""
    text, pieces, end = tasks[0].hole.source.text, list[str](), 0
    for task in tasks:
        hole = task.hole
        pieces += [text[end : hole.start], hole.before_fill, task.cut.truth, hole.after_fill]
        end = hole.end
    return "".join([*pieces, text[end:]])


def test_the_truth_in_all_holes_is_the_original(tmp_path: Path) -> None:
    tasks = make_workspace(tmp_path, [_cart()], 100, seed=1)
    assert 3 <= len(tasks) <= HOLES_PER_FILE
    assert {task.hole.kind for task in tasks} == {"stubs", "markers"}
    assert {task.hole.max_tokens for task in tasks} == {MAX_TOKENS}
    assert (tmp_path / "shop" / "cart.py").read_text() == tasks[0].hole.source.text != PYTHON
    assert _restored(tasks) == PYTHON
    for task in tasks:
        assert task.hole.source.text[task.hole.start : task.hole.end] == task.cut.replacement


@pytest.mark.parametrize("language", OTHERS)
def test_bodies_are_cut_out_in_other_languages(tmp_path: Path, language: str) -> None:
    file = SourceFile(f"a.{_SUFFIXES[language]}", language, OTHERS[language])
    tasks = make_workspace(tmp_path, [file], 100, seed=0)
    assert "stubs" in {task.hole.kind for task in tasks}
    assert _restored(tasks) == file.text


def test_the_same_seed_gives_the_same_workspace(tmp_path: Path) -> None:
    files = [_cart(f"m{number}.py") for number in range(6)]
    texts = []
    for number, seed in enumerate((3, 3, 4)):
        root = tmp_path / str(number)
        make_workspace(root, files, 8, seed)
        texts.append([(root / file.name).read_text() for file in files])
    assert texts[0] == texts[1] != texts[2]


def test_what_is_cut_out_leaves_documentation_and_brackets_whole(tmp_path: Path) -> None:
    for seed in range(8):
        for task in make_workspace(tmp_path / str(seed), [_cart()], 100, seed):
            truth = task.cut.truth
            assert not truth.startswith('"""')
            assert truth.count("(") == truth.count(")")
            assert task.hole.kind == "stubs" or "\n" not in truth


def test_no_more_holes_than_wanted(tmp_path: Path) -> None:
    files = [_cart(f"m{number}.py") for number in range(6)]
    for number in (1, 2, 7):
        tasks = make_workspace(tmp_path / str(number), files, number, seed=0)
        assert 1 <= len(tasks) <= number


def test_files_with_holes_of_their_own_are_left_out(tmp_path: Path) -> None:
    stub = SourceFile("stub.py", "python", PYTHON + "\n\ndef later() -> None:\n    raise NotImplementedError\n")
    tasks = make_workspace(tmp_path, [stub, _cart("cart.py")], 100, seed=0)
    assert {task.cut.file.name for task in tasks} == {"cart.py"}
    assert [path.name for path in tmp_path.iterdir()] == ["cart.py"]


def test_a_fill_is_judged_by_the_original(tmp_path: Path) -> None:
    tasks = make_workspace(tmp_path, [_cart()], 100, seed=1)
    for task in tasks:
        truth = task.cut.truth
        assert task.is_exact(_fill(task, truth)) and task.is_exact(_fill(task, truth + " "))
        assert task.parses(_fill(task, truth))
        assert not task.is_exact(_fill(task, truth + "x"))
        assert not task.parses(_fill(task, truth + " )"))
        failed = replace(_fill(task, truth), state=FillState.FAILED)
        assert not task.is_exact(failed) and not task.parses(failed)
    stub = next(task for task in tasks if task.hole.kind == "stubs")
    assert stub.parses(_fill(stub, "return None"))


def test_nothing_is_cut_out_of_a_file_without_code(tmp_path: Path) -> None:
    assert make_workspace(tmp_path, [SourceFile("a.py", "python", "# nothing = here at all\n")], 10, seed=0) == []
