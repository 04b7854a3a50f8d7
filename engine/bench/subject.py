"""The model that is measured, and the machine it runs on. Imports torch."""

import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from engine.bench.published import write_published_model
from engine.bench.settings import PUBLISHED
from engine.bench.workloads import Item, warm_up_workload
from engine.checkpoint.source import open_checkpoint
from engine.checkpoint.store import resolve_model
from engine.config import PROFILES, EngineConfig, LaneLimits, Profile
from engine.engine import Engine
from engine.fim import LEFT_TO_RIGHT
from engine.machine.record import cpu_name
from engine.machine.synthetic import CONTEXT_TOKENS
from engine.model.config import ModelConfig
from engine.request import CompletionRequest, Lane, SamplingParams


@dataclass(frozen=True)
class Subject:
    """A model before it is loaded."""

    name: str
    shape: ModelConfig
    vocabulary: list[int]
    """Ids of all tokens that stand for text."""
    config: EngineConfig

    def load(self, kv_cache_mb: int) -> Engine:
        """Read it into memory as the service would, by the same loader."""
        return Engine.load(replace(self.config, kv_cache_mb=kv_cache_mb))


@contextmanager
def open_subject(name: str) -> Iterator[Subject]:
    """The model of that name; its files are there as long as the context is open. Raises ``ModelError``."""
    with tempfile.TemporaryDirectory(prefix="midline-bench-") as folder:
        is_published = name == PUBLISHED
        path = str(write_published_model(Path(folder))) if is_published else name
        checkpoint = open_checkpoint(resolve_model(path).path)
        tokenizer = checkpoint.load_tokenizer()
        yield Subject(
            name=name,
            shape=checkpoint.config,
            vocabulary=[i for i in range(tokenizer.vocab_size) if not tokenizer.is_control(i)],
            config=EngineConfig(
                model=path,
                dtype="float32" if is_published else "auto",
                max_context_tokens=CONTEXT_TOKENS,
                fim_family=LEFT_TO_RIGHT.name,  # prompts are given as tokens
            ),
        )


def capped(engine: Engine, profile_name: str, lane: Lane, cap: int, vocabulary: Sequence[int]) -> Engine:
    """The engine with at most ``cap`` requests of a lane at once, warm and with an empty cache.

    It does not draft: the text of random prompts repeats itself and would make that look better than it is.
    """
    profile = PROFILES[profile_name]
    wanted: Profile = replace(
        profile,
        interactive=_limited(profile.interactive, cap) if lane is Lane.INTERACTIVE else profile.interactive,
        bulk=_limited(profile.bulk, cap) if lane is Lane.BULK else profile.bulk,
        max_drafts=0,
    )
    engine = engine.with_profile(wanted)
    engine.complete_all(request_of(item, lane) for item in warm_up_workload(cap, vocabulary))
    engine.cache.clear()
    return engine


def _limited(limits: LaneLimits, cap: int) -> LaneLimits:
    return LaneLimits(max_sequences=cap, max_batch_tokens=max(limits.max_batch_tokens, cap))


def request_of(item: Item, lane: Lane, session: str = "") -> CompletionRequest:
    """What the engine is asked for an item of a workload."""
    sampling = SamplingParams(max_tokens=item.num_output_tokens, ignore_eos=True)
    return CompletionRequest(prefix="", prompt_ids=item.prompt_ids, sampling=sampling, lane=lane, session=session)


def machine_facts() -> dict[str, str | int]:
    """What a reader must know to compare the numbers."""
    return {
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count() or 0,
        "num_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
