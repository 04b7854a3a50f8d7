"""Typing with the default model: what a keystroke costs in tokens, and when typed text leaves the rest of an answer."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.cache.prefix_index import common_length
from engine.checkpoint.vocabulary import from_gguf_path
from engine.engine import Engine
from engine.fim import PromptBuilder, family_named
from engine.healing import Vocabulary
from engine.request import CompletionRequest, SamplingParams
from tests.real_model.conftest import require

pytestmark = pytest.mark.real_model
_ROOT = Path(__file__).resolve().parents[2]
_TYPED = (
    '    def café(self, naïve: str) -> None:\n        """Ünïcode — 日本語 😀."""\n        if x == 10:\n'
    "            return self.values[i + 1].some_long_identifier_name(x, y=3.14159)\n\n\n",
    "\tfor (let i = 0; i < items.length; i++) {\r\n\t\tconsole.log(`${items[i]}`);\r\n\t}\r\n",
    "x = {'a': [1, 2, 3], \"<|fim_middle|>\": None}  # ---------------------------- <|fim_middle|>\nretrun xyzzy",
)


@pytest.mark.parametrize("typed", _TYPED)
def test_a_keystroke_computes_what_was_typed(typed: str) -> None:
    vocabulary = Vocabulary.of(from_gguf_path(require("qwen2.5-coder-0.5b")))
    builder, before, suffix = PromptBuilder(family_named("qwen"), vocabulary, 2048), "class A:\n", "\nx = 1\n"
    prompts = [
        builder.infill(before + typed[:length], suffix, (), 64, anchor=len(before)) for length in range(len(typed) + 1)
    ]
    computed = []
    for at, prompt in enumerate(prompts[1:], 1):
        known = max(common_length(prompt.ids, earlier.ids) for earlier in prompts[:at])
        computed.append(max(1, len(prompt.ids) - known))
    num_deep = sum(len(vocabulary.tokenizer.encode(prompt.required.decode())) > 1 for prompt in prompts)
    print(f"\ncomputed: mean {sum(computed) / len(computed):.2f}, most {max(computed)}; {num_deep} healed deeper")
    assert max(computed) <= 8
    assert sum(computed) <= 1.6 * len(computed)
    assert num_deep > 0


def test_typing_an_answer_leaves_its_rest(default_engine: Engine) -> None:
    """Exactly where the tokens fed are those generated, up to rounding; and nearly always elsewhere."""
    lines = (_ROOT / "engine/request.py").read_text(encoding="utf-8").splitlines(keepends=True)
    outcomes: dict[bool, list[bool]] = {True: [], False: []}
    for at in range(12, 150, 23):
        before, line = "".join(lines[:at]), lines[at]
        start = len(line) - len(line.lstrip()) + 2
        sampling = SamplingParams(max_tokens=24, stop=("\n",))
        suffix = "\n" + "".join(lines[at + 1 : at + 20])
        request = CompletionRequest(before + line[:start], suffix, sampling, anchor=len(before))
        answer = default_engine.complete_all([request])[0]
        whole = [*default_engine.prompt(request).ids, *answer.token_ids]
        for length in range(1, len(answer.text), 4):
            typed = replace(request, prefix=request.prefix + answer.text[:length])
            fed = default_engine.prompt(typed).ids
            rest = default_engine.complete_all([typed])[0].text
            outcomes[whole[: len(fed)] == fed].append(rest.startswith(answer.text[length:]))
    exact, other = outcomes[True], outcomes[False]
    print(f"\nsame tokens: {sum(exact)} of {len(exact)} leave the rest; other tokens: {sum(other)} of {len(other)}")
    assert len(exact) >= 0.9 * (len(exact) + len(other))
    assert sum(exact) >= 0.97 * len(exact)
