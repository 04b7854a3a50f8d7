"""The process of a benchmark: ``python -m engine.bench serving --settings JSON``. Imports torch when it measures."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cattrs
from rich.console import Console
from rich.markup import escape

from engine.bench import published
from engine.bench.plot import write_plot
from engine.bench.report import (
    OFFLINE_COLUMNS,
    SERVING_COLUMNS,
    ModelResult,
    Report,
    print_report,
    write_files,
)
from engine.bench.settings import (
    PUBLISHED,
    BenchSettings,
    OfflineSettings,
    ServingSettings,
    check,
    is_published_workload,
    make_folder,
)
from engine.errors import ConfigError, MidlineError, RequestError, UnknownModelError
from engine.info import EngineInfo

_KINDS: dict[str, type[BenchSettings]] = {"serving": ServingSettings, "offline": OfflineSettings}
_INTERRUPTED = 130
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


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write; returns the exit code."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    errors = Console(stderr=True, highlight=False)

    def say(text: str) -> None:
        errors.print(escape(text), style="dim", soft_wrap=True)

    try:
        settings = _parse(arguments)
        _finish(_run(settings, say), settings, say)
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


def _run(settings: BenchSettings, say: Say) -> Report:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as the service does
    say("loading torch")
    from engine.bench.subject import machine_facts

    measure = _measure_serving if isinstance(settings, ServingSettings) else _measure_offline
    results = [measure(name, settings, say) for name in settings.models]
    is_serving = isinstance(settings, ServingSettings)
    conditions = {name: value for name, value in asdict(settings).items() if name not in ("out", "models")}
    return Report(
        benchmark="serving" if is_serving else "offline",
        machine=machine_facts(),
        conditions=conditions,
        notes=list(_SERVING_NOTES if is_serving else _OFFLINE_NOTES),
        results=results,
    )


def _measure_serving(name: str, settings: BenchSettings, say: Say) -> ModelResult:
    from engine.bench.serving import measure_serving
    from engine.bench.subject import open_subject

    assert isinstance(settings, ServingSettings)
    with open_subject(name) as subject:
        engine, rows = measure_serving(subject, settings, say)
    figures = published.SERVING_ROWS if name == PUBLISHED and is_published_workload(settings) else ()
    return ModelResult(name, _facts(engine.info, name), [asdict(row) for row in rows], [dict(row) for row in figures])


def _measure_offline(name: str, settings: BenchSettings, say: Say) -> ModelResult:
    from engine.bench.offline import measure_offline
    from engine.bench.subject import open_subject

    assert isinstance(settings, OfflineSettings)
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


def _facts(info: EngineInfo, name: str) -> dict[str, Any]:
    """By the name that was given: the published model's folder is gone when somebody reads this."""
    return asdict(info) | {"model": name}


def _finish(report: Report, settings: BenchSettings, say: Say) -> None:
    if settings.out:
        folder = Path(settings.out)
        paths = write_files(report, folder)
        plot = write_plot(report, folder)
        if plot is None:
            say("no plot without matplotlib; in Midline's folder run: pip install '.[bench]'")
        say("written: " + ", ".join(map(str, [*paths, plot] if plot else paths)))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    columns = SERVING_COLUMNS if isinstance(settings, ServingSettings) else OFFLINE_COLUMNS
    print_report(report, columns, console)


def _parse(arguments: list[str] | None) -> BenchSettings:
    parser = argparse.ArgumentParser(prog="python -m engine.bench", description="Measures the engine.")
    parser.add_argument("workload", choices=_KINDS)
    parser.add_argument("--settings", default="{}", help="ServingSettings or OfflineSettings as JSON")
    values = parser.parse_args(arguments)
    converter = cattrs.Converter(forbid_extra_keys=True)
    try:
        data: dict[str, Any] = json.loads(values.settings)
        settings: BenchSettings = converter.structure(data, _KINDS[values.workload])
    except (ValueError, cattrs.BaseValidationError) as error:
        reasons = cattrs.transform_error(error) if isinstance(error, cattrs.BaseValidationError) else [str(error)]
        raise ConfigError(f"--settings: {'; '.join(reasons)}") from None
    check(settings)
    if settings.out:
        make_folder(settings.out)
    return settings


if __name__ == "__main__":
    sys.exit(main())
