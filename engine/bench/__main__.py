"""The process of a benchmark: ``python -m engine.bench serving --settings JSON``. Imports torch when it measures."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cattrs
from rich.console import Console
from rich.markup import escape

from engine.bench import published
from engine.bench.peer_rows import PEER_COLUMNS, peer_bars
from engine.bench.plot import write_plot
from engine.bench.report import (
    OFFLINE_COLUMNS,
    SERVING_COLUMNS,
    STEP_COLUMNS,
    STEP_SHARES,
    Column,
    ModelResult,
    Report,
    print_report,
    write_files,
)
from engine.bench.settings import (
    PUBLISHED,
    BenchSettings,
    OfflineSettings,
    PeersSettings,
    ServingSettings,
    StepSettings,
    check,
    is_published_workload,
    make_folder,
)
from engine.errors import ConfigError, MidlineError, RequestError, UnknownModelError
from engine.info import EngineInfo

_INTERRUPTED = 130
_ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_PLAIN_WIDTH = 130  # of tables where there is no terminal
Say = Callable[[str], None]

_NO_DRAFTS = "nothing is drafted: the text of random prompts repeats itself and would flatter speculation"
_SERVING_NOTES = (
    "times count from when a request was due; the published ones from when the engine's loop took it in",
    "in time: of all submitted requests, superseded ones too; published: of the completed ones",
    "each request of a buffer is the one before and more tokens typed; the published prompts never grow",
    _NO_DRAFTS,
)
_OFFLINE_NOTES = (
    "prompts are distinct random tokens and share nothing; the published ones begin alike, so most is cached",
    "several prompts are computed in one pass; the published engine computes one at a time",
    "memory is reserved when a request begins, so nothing is preempted; recomputed: tokens computed twice, measured",
    "padding: of the keys that attention reads, those that no request wants",
    _NO_DRAFTS,
)
_STEP_NOTES = (
    "a pass over new tokens of one sequence behind its cached ones, and the logits of the last",
    "everything is measured once a round, in turn: medians, beside the median bandwidth of the same rounds",
    "MB: the weights once, and the keys and values of all tokens; operations: two a weight and row, and attention's",
    "an operator's share: its time alone, in all layers in order; rest: what the pass takes beyond their sum, below 0 "
    "where being called one by one costs more (threads are woken each time)",
)


_PEERS_NOTES = (
    "wall time of both: Midline in this process, the peer over HTTP on loopback, 1 to 2 ms a question more",
    "medians of repetitions in turn; each has prompts of its own, the same for both sides; ratio: above 1 is faster",
    "its clock: the peer's own times, of the prompt (first tokens) or of all tokens but the first (decode)",
    "prefill: random tokens and one new one; decode: greedy, behind 256 tokens of code that are cached, no drafts",
    "decode code: behind 400 tokens of code that are cached; Midline drafts from n-grams, the peer as said above",
    "keystroke: a line is typed into real code, 700 tokens before it and 300 behind; time to one token of new text, "
    "for Midline with those before it that repeat what is typed",
    "/infill: as llama.vim asks; /completion: typing only appends to the prompt, the best that the peer's cache can do",
    "n-way: n prompts of 64 random tokens at once; new tokens, by the time until the last, prompts included",
)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit code."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    errors = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        errors.print(escape(text), style="dim", soft_wrap=True)

    try:
        name, settings = _parse(arguments)
        _finish(_run(name, settings, say), settings, say)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _INTERRUPTED
    except MidlineError as error:
        sys.stderr.write(f"midline: {error}\n")
        return 2 if isinstance(error, (ConfigError, RequestError, UnknownModelError)) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
        return 1
    except OSError as error:
        sys.stderr.write(f"midline: cannot write {error.filename or 'the output'}: {error.strerror or error}\n")
        return 1
    return 0


def _run(name: str, settings: BenchSettings, say: Say) -> Report:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the service does
    say("loading torch")
    from engine.bench.subject import machine_facts

    benchmark = _BENCHMARKS[name]
    results = [benchmark.measure(model, settings, say) for model in settings.models]
    return Report(
        benchmark=name,
        machine=machine_facts(),
        conditions={name: value for name, value in asdict(settings).items() if name not in ("out", "models")},
        notes=list(benchmark.notes),
        results=results,
    )


def _measure_serving(name: str, settings: ServingSettings, say: Say) -> ModelResult:
    from engine.bench.serving import measure_serving
    from engine.bench.subject import open_subject

    with open_subject(name) as subject:
        engine, rows = measure_serving(subject, settings, say)
    figures = published.SERVING_ROWS if name == PUBLISHED and is_published_workload(settings) else ()
    return ModelResult(name, _facts(engine.info, name), [asdict(row) for row in rows], [dict(row) for row in figures])


def _measure_offline(name: str, settings: OfflineSettings, say: Say) -> ModelResult:
    from engine.bench.offline import measure_offline
    from engine.bench.subject import open_subject

    with open_subject(name) as subject:
        engine, rows, rates = measure_offline(subject, settings, say)
    figures = published.OFFLINE_ROWS if name == PUBLISHED and is_published_workload(settings) else ()
    return ModelResult(
        model=name,
        facts=_facts(engine.info, name),
        rows=[asdict(row) for row in rows],
        published=[dict(row) for row in figures],
        roofline=asdict(rates) if rates else None,
    )


def _measure_step(name: str, settings: StepSettings, say: Say) -> ModelResult:
    from engine.bench.step import bars, measure_step
    from engine.bench.subject import open_subject

    with open_subject(name) as subject:
        info, rows, rates = measure_step(subject, settings, say)
    return ModelResult(
        model=name,
        facts=_facts(info, name),
        rows=[row.flat() for row in rows],
        roofline=asdict(rates),
        bars=bars(rows),
    )


def _measure_peers(name: str, settings: PeersSettings, say: Say) -> ModelResult:
    from engine.bench.peers import measure_peers

    for number in _ENDING_SIGNALS:  # the peer must end as well
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    outcome = measure_peers(name, settings, say)
    return ModelResult(
        model=name,
        facts=_facts(outcome.info, name) | {"peer": outcome.peer},
        rows=[asdict(row) for row in outcome.rows],
        bars=peer_bars(outcome.rows),
        remarks=outcome.remarks,
    )


@dataclass(frozen=True)
class _Benchmark:
    settings: type[BenchSettings]
    measure: Callable[[str, Any, Say], ModelResult]
    tables: tuple[tuple[Column, ...], ...]
    notes: tuple[str, ...]
    has_plot: bool = True


_BENCHMARKS = {
    "serving": _Benchmark(ServingSettings, _measure_serving, (SERVING_COLUMNS,), _SERVING_NOTES),
    "offline": _Benchmark(OfflineSettings, _measure_offline, (OFFLINE_COLUMNS,), _OFFLINE_NOTES),
    "peers": _Benchmark(PeersSettings, _measure_peers, (PEER_COLUMNS,), _PEERS_NOTES, has_plot=False),
    "step": _Benchmark(StepSettings, _measure_step, (STEP_COLUMNS, STEP_SHARES), _STEP_NOTES),
}


def _facts(info: EngineInfo, name: str) -> dict[str, Any]:
    """By the name that was given: the published model's folder is gone when somebody reads this."""
    return asdict(info) | {"model": name}


def _finish(report: Report, settings: BenchSettings, say: Say) -> None:
    if settings.out:
        folder = Path(settings.out)
        paths = write_files(report, folder)
        has_plot = _BENCHMARKS[report.benchmark].has_plot
        plot = write_plot(report, folder) if has_plot else None
        if has_plot and plot is None:
            say("no plot without matplotlib; in Midline's folder run: pip install '.[bench]'")
        say("written: " + ", ".join(map(str, [*paths, plot] if plot else paths)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    print_report(report, _BENCHMARKS[report.benchmark].tables, console)


def _parse(arguments: list[str] | None) -> tuple[str, BenchSettings]:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description="Measures the engine.")
    parser.add_argument("workload", choices=_BENCHMARKS)
    parser.add_argument("--settings", default="{}", help="the benchmark's settings as JSON")
    values = parser.parse_args(arguments)
    converter = cattrs.Converter(forbid_extra_keys=True)
    try:
        data: dict[str, Any] = json.loads(values.settings)
        settings: BenchSettings = converter.structure(data, _BENCHMARKS[values.workload].settings)
    except (ValueError, cattrs.BaseValidationError) as error:
        reasons = cattrs.transform_error(error) if isinstance(error, cattrs.BaseValidationError) else [str(error)]
        raise ConfigError(f"--settings: {'; '.join(reasons)}") from None
    check(settings)
    if settings.out:
        make_folder(settings.out)
    return values.workload, settings


if __name__ == "__main__":
    sys.exit(main())
