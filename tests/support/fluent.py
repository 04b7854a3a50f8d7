"""A tiny model that speaks something like code: which token follows is mostly learnt, but the whole context decides.

A random model's answers are noise, which nobody tokenises as the model has said it. This one's are words and lines,
so that typing them is what a person does, and still no two contexts give the same.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.support.tiny_checkpoints import (
    CONTROL_TOKENS,
    TinyShape,
    tiny_pieces,
    tiny_tokenizer,
    tiny_weights,
    write_tiny_gguf,
)

PROGRAM = """\
def add(a, b):
    return a + b


class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def length(self):
        if self.x == 3:
            return 10
        for i in range(10):
            print(i)
            self.x = add(self.x, i)
        return self.x + self.y


def main(path):
    with open(path) as file:
        lines = [file.read() for i in range(3)]
    print(add(1, 2))
    point = Point(1, 2)
    return point
"""
_EMBEDDING_SCALE = 8.0
"""How much the last token decides, against all before it."""
_NOISE = 0.5


def fluent_weights(shape: TinyShape, vocab_size: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights, but for an output that knows which token follows which in ``PROGRAM``."""
    weights = tiny_weights(shape, vocab_size, seed)
    embedding = weights["model.embed_tokens.weight"] * np.float32(_EMBEDDING_SCALE)
    counts = np.zeros((vocab_size, vocab_size), np.float32)
    ids = tiny_tokenizer().encode(PROGRAM, add_special_tokens=False).ids
    np.add.at(counts, (ids[:-1], ids[1:]), 1.0)
    followers = np.sqrt(counts / np.maximum(counts.sum(1, keepdims=True), 1.0))
    directions = embedding / np.linalg.norm(embedding, axis=1, keepdims=True)
    weights["model.embed_tokens.weight"] = embedding
    weights["lm_head.weight"] = (_NOISE * weights["lm_head.weight"] + followers.T @ directions).astype(np.float32)
    return weights


def write_fluent_gguf(path: Path, seed: int = 1, control: tuple[str, ...] = CONTROL_TOKENS) -> Path:
    """A float32 model file; returns its path."""
    shape = TinyShape()
    weights = fluent_weights(shape, len(tiny_pieces(control)), seed)
    return write_tiny_gguf(path, shape, control=control, weights=weights)
