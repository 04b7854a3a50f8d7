"""The published system that serves the same two workloads: its model's shape and its figures. Light.

The figures are those of snowch/llm-serving-from-scratch (bench/results, 2026-09-13). Its model has random weights as
well, so that only the shape matters.
"""

from pathlib import Path

from engine.machine.synthetic import SyntheticShape, write_synthetic_model

CONDITIONS = "4 vCPUs, torch 2.14, float32"
NUM_PARAMETERS = 5_838_080
SERVING_KV_MB = 48
"""The published 1024 blocks of 16 tokens."""
OFFLINE_KV_MB = 192
"""The published 4096 blocks."""

SERVING_ROWS: tuple[dict[str, float], ...] = (
    {"cap": 1, "ttft_p50_ms": 554.2, "ttft_p95_ms": 818.7, "output_tokens_per_s": 126.63, "in_time_share": 0.0},
    {"cap": 4, "ttft_p50_ms": 175.9, "ttft_p95_ms": 338.2, "output_tokens_per_s": 170.72, "in_time_share": 0.125},
    {"cap": 16, "ttft_p50_ms": 61.1, "ttft_p95_ms": 89.3, "output_tokens_per_s": 171.04, "in_time_share": 0.417},
    {"cap": 64, "ttft_p50_ms": 42.3, "ttft_p95_ms": 80.0, "output_tokens_per_s": 172.05, "in_time_share": 0.75},
)
OFFLINE_ROWS: tuple[dict[str, float], ...] = (
    {"cap": 1, "wall_s": 14.619, "output_tokens_per_s": 135.92, "kv_peak_share": 0.036},
    {"cap": 4, "wall_s": 8.080, "output_tokens_per_s": 245.92, "kv_peak_share": 0.036},
    {"cap": 16, "wall_s": 7.998, "output_tokens_per_s": 248.45, "kv_peak_share": 0.036},
    {"cap": 64, "wall_s": 6.388, "output_tokens_per_s": 311.07, "kv_peak_share": 0.038},
)

_SHAPE = SyntheticShape(num_layers=6, hidden_size=256, ffn_size=1024, num_heads=8, num_kv_heads=2, head_dim=32)


def write_published_model(folder: Path, seed: int = 0) -> Path:
    """Write a Hugging Face folder with random weights and a vocabulary of all bytes; returns it."""
    return write_synthetic_model(folder, _SHAPE, seed)
