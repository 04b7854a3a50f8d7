"""The numbers at the end of a run: what became of the holes, and how well the machine was used. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from engine.bulk.wire import Summary
from engine.checkpoint.download import format_bytes
from lsp_server.bulk.fills import Fill, FillState
from lsp_server.bulk.wording import counted


@dataclass(frozen=True)
class EngineReport:
    """How the engine did; None stands for what was not measured."""

    model: str
    precision: str
    load_s: float
    compute_s: float
    num_computed_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    generated_tokens_per_s: float
    decode_tokens_per_s: float | None
    """In the passes that computed nothing but answers."""
    cached_share: float
    """Of the prompts' tokens."""
    padding_share: float
    num_preemptions: int
    max_batch: int
    """Requests that did run together."""
    max_kv_used_share: float
    peak_memory_bytes: int
    roofline_share: float | None
    """Least time that the operations needed at the machine's measured rate, of the time they took."""


@dataclass(frozen=True)
class Report:
    """A run in numbers."""

    num_holes: int
    num_filled: int
    num_failed: int
    num_reverted: int
    num_from_journal: int
    num_shared: int
    """Holes that took the answer to another one's request."""
    num_second_attempts: int
    """Holes that needed one."""
    verified_share: float
    """Holes with a verified fill, of all."""
    seconds: float
    engine: EngineReport | None = None
    """None when the journal had all answers."""


def report_of(fills: Sequence[Fill], seconds: float, engine: EngineReport | None) -> Report:
    """Count the outcomes."""
    states = Counter(fill.state for fill in fills)
    num_good = states[FillState.FILLED] + states[FillState.REVERTED]
    computed = [fill.key for fill in fills if fill.key and not fill.is_from_journal]
    return Report(
        num_holes=len(fills),
        num_filled=states[FillState.FILLED],
        num_failed=states[FillState.FAILED],
        num_reverted=states[FillState.REVERTED],
        num_from_journal=sum(fill.is_from_journal for fill in fills),
        num_shared=len(computed) - len(set(computed)),
        num_second_attempts=sum(fill.num_attempts > 1 for fill in fills),
        verified_share=num_good / len(fills) if fills else 1.0,
        seconds=seconds,
        engine=engine,
    )


def engine_report(model: str, precision: str, load_s: float, summary: Summary) -> EngineReport:
    """The engine's last word in shares and rates."""
    last = summary.progress
    compute_s = max(last.seconds, 1e-9)
    num_prompt_tokens = last.num_cached_tokens + last.num_computed_tokens
    rate = summary.operations_per_s
    return EngineReport(
        model=model,
        precision=precision,
        load_s=load_s,
        compute_s=last.seconds,
        num_computed_tokens=last.num_computed_tokens,
        num_cached_tokens=last.num_cached_tokens,
        num_generated_tokens=last.num_generated_tokens,
        generated_tokens_per_s=last.num_generated_tokens / compute_s,
        decode_tokens_per_s=summary.decode_tokens / summary.decode_seconds if summary.decode_seconds else None,
        cached_share=last.num_cached_tokens / max(num_prompt_tokens, 1),
        padding_share=last.padding_share,
        num_preemptions=last.num_preemptions,
        max_batch=summary.max_running,
        max_kv_used_share=summary.max_kv_used_share,
        peak_memory_bytes=last.peak_memory_bytes,
        roofline_share=summary.num_operations / rate / compute_s if rate else None,
    )


def lines_of(report: Report) -> Iterator[str]:
    """For a person."""
    notes = [
        f"{report.num_failed} failed" if report.num_failed else "",
        f"{report.num_reverted} taken back" if report.num_reverted else "",
        f"{report.num_from_journal} from the journal" if report.num_from_journal else "",
        f"{report.num_shared} shared an answer" if report.num_shared else "",
        f"{report.num_second_attempts} needed a second attempt" if report.num_second_attempts else "",
    ]
    outcome = f"{report.num_filled} of {counted(report.num_holes, 'holes')} filled in {report.seconds:.1f} s"
    yield ", ".join([outcome, *filter(None, notes)])
    if (engine := report.engine) is None:
        return
    decode = f" ({engine.decode_tokens_per_s:.0f}/s decoding)" if engine.decode_tokens_per_s else ""
    yield (
        f"{engine.model}, {engine.precision}, loaded in {engine.load_s:.1f} s:"
        f" {engine.num_generated_tokens:,} tokens written, {engine.generated_tokens_per_s:.0f}/s{decode};"
        f" {engine.num_computed_tokens:,} read, {engine.cached_share:.0%} of the prompts were there already"
    )
    roofline = f", {engine.roofline_share:.0%} of what this machine can do" if engine.roofline_share else ""
    yield (
        f"batch up to {engine.max_batch}, padding {engine.padding_share:.1%}, preemptions {engine.num_preemptions},"
        f" cache {engine.max_kv_used_share:.0%} full at most, memory {format_bytes(engine.peak_memory_bytes)}{roofline}"
    )
