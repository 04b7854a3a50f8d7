"""Pre-tokenizer patterns by the name a GGUF file gives (``tokenizer.ggml.pre``). Light: plain data.

Each is a sequence of regular expressions; every match becomes a piece of its own, and the next expression
works on the pieces. Source: llama.cpp's ``llama-vocab.cpp``. An unknown name is an error: guessing one yields
wrong token ids without any sign of it.
"""

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LLAMA3 = (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",)
_QWEN2 = (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SINGLE_DIGITS = (r"\p{N}", _GPT2)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")
_SEED_CODER = (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",)

PATTERNS: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "default": (_GPT2,),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "smollm": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "mellum2": _SINGLE_DIGITS,
    "deepseek-coder": _DEEPSEEK_CODER,
    "seed-coder": _SEED_CODER,
}

IGNORE_MERGES = frozenset({"llama-bpe", "llama3"})
"""Where a piece that is itself a token is taken whole, whatever the merges say."""
