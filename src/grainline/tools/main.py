"""The `grainline` command: run, explain, plan, bench, trace, measure, audit, calibrate, knobs.

Commands parse their arguments and print; the work is in the files beside this one. An error that grainline raised is
one line on stderr: exit code 2 when the call was wrong, 1 when the model or the run was. GRAINLINE_DEBUG=1 shows the
traceback instead.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from grainline.base import log
from grainline.base.errors import GrainlineError, OptionError
from grainline.base.knobs import DEBUG, check_environment

app = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__.split("\n")[0]
)

ModelPath = Annotated[Path, typer.Argument(help="An ONNX file.", metavar="MODEL", show_default=False)]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="NAME=FILE.npy", help="Feed a saved array; repeatable.")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1,128", help="Shape of a random input, or NAME=4 for a named dimension."),
]
Threads = Annotated[int | None, typer.Option(min=0, help="Threads of a run; 0 means all that are allowed.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random inputs.")]


@app.callback()
def check_variables(context: typer.Context) -> None:
    if context.invoked_subcommand != "knobs":  # which lists malformed variables
        check_environment()


@app.command()
def run(
    model: ModelPath,
    input: Inputs = None,
    shape: Shapes = None,
    threads: Threads = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the outputs, one .npy file each.")] = None,
    seed: Seed = 0,
) -> None:
    """Run a model once, on random inputs where none are given, and summarise its outputs."""
    from grainline.tools import running

    for line in running.run_model(model, input or [], shape or [], threads, output, seed):
        print(line)


@app.command()
def explain(
    model: ModelPath,
    threads: Threads = None,
    kernel: Annotated[
        str | None, typer.Option(help="Print all candidates of the kernels whose name or symbol begins with this.")
    ] = None,
) -> None:
    """Print how a model is executed, and why so: fusion, mapping, grain, fallbacks."""
    from grainline.tools import planning, running

    if kernel is None:
        print(running.load_with_progress(model, threads).explain())
        return
    if threads is not None:
        raise OptionError("--threads does not go with --kernel", remedy="Kernels are planned for all processors.")
    for line in planning.model_lines(model, kernel):
        print(line)


@app.command()
def plan(
    operator: Annotated[str, typer.Argument(help="One of the suites' operators, such as rms_norm.")],
    shape: Annotated[str, typer.Argument(help="Its extents, such as 129x768.")],
    threads: Threads = None,
    parked: Annotated[bool, typer.Option("--parked", help="Plan for a launch that finds the pool asleep.")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="Time every candidate beside its prediction.")] = False,
    rows: Annotated[int, typer.Option(min=1, help="Candidates to print, the cheapest first.")] = 20,
) -> None:
    """Print every candidate of a launch with its terms, what was refused, and the pick; measured on request."""
    from grainline.tools import planning

    for line in planning.operator_lines(operator, shape, threads, parked, measure, rows):
        print(line)


@app.command()
def bench(
    model: ModelPath,
    shape: Shapes = None,
    input: Inputs = None,
    peer: Annotated[str | None, typer.Option(help="Another library to measure beside: onnxruntime.")] = None,
    threads: Threads = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often every arm takes its turn.")] = 10,
    seconds: Annotated[float, typer.Option(min=0.01, help="Length of one turn.")] = 0.3,
    seed: Seed = 0,
) -> None:
    """Measure latency: each library in its own process, taking turns, with a second grainline as the noise gauge."""
    from grainline.tools import benching

    for line in benching.bench_model(model, input or [], shape or [], peer, threads, rounds, seconds, seed):
        print(line)


@app.command()
def trace(
    model: ModelPath,
    output: Annotated[Path, typer.Option("-o", "--output", help="The JSON file to write.")] = Path("trace.json"),
    shape: Shapes = None,
    input: Inputs = None,
    threads: Threads = None,
    runs: Annotated[int, typer.Option(min=1, help="Runs to record, behind one that warms up.")] = 3,
    seed: Seed = 0,
) -> None:
    """Record runs for a trace viewer: workers, streams, pool threads, memory."""
    from grainline.tools import tracing

    for line in tracing.trace_model(model, input or [], shape or [], threads, output, runs, seed):
        print(line)


@app.command()
def measure(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the evidence; an unfinished one resumes.")],
    suite: Annotated[
        list[str] | None, typer.Option(help="pilot, validation, fixed-grain, held-out or contradiction; repeatable.")
    ] = None,
    threads: Threads = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="Stop each suite after about this long.")] = None,
    keep: Annotated[bool, typer.Option(help="Keep code, inputs and outputs, so that the audit can check them.")] = True,
) -> None:
    """Run measuring suites: one process per visit, checked by an oracle, every visit recorded."""
    from grainline.tools import evidence

    for line in evidence.measure_suites(suite or ["pilot"], output, threads, seconds, keep):
        print(line)


@app.command()
def audit(
    folder: Annotated[Path, typer.Argument(help="A folder that `measure` wrote, or a record.", show_default=False)],
    tables: Annotated[bool, typer.Option("--tables", help="Write tables.md and tables.html there.")] = False,
    record: Annotated[Path | None, typer.Option(help="Write the audited reports compressed into this folder.")] = None,
) -> None:
    """Recompute every figure of recorded suites from the raw samples; exit code 1 when anything does not hold."""
    from grainline.tools import evidence

    for line in evidence.audit_folder(folder, tables, record):
        print(line)


@app.command()
def calibrate(
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="File to write instead of the one that planning reads.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Measure so many times over, and fit all of it.")] = 1,
) -> None:
    """Measure what this machine takes, in a few seconds, for the planner to choose by."""
    from grainline.tools import calibrating

    for line in calibrating.calibrate_machine(output, repeat):
        print(line)


@app.command()
def knobs() -> None:
    """List every environment variable: name, type, default, value in force, and what it does."""
    from grainline.tools import listing

    for line in listing.knob_lines():
        print(line)


#: as of a program that SIGPIPE ends
READER_LEFT = 141


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the console script; ends the process with its exit code."""
    log.warn_in_one_line()
    code = call(arguments)
    sys.exit(code if _flushed() else READER_LEFT)


def _flushed() -> bool:
    """Whether all output got out; what a reader that left, as `head` does, no longer wants is dropped."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def call(arguments: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    if _is_debugged():
        import logging

        logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
        return int(app(arguments, standalone_mode=True) or 0)
    try:
        app(arguments, standalone_mode=True)
        return 0
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BrokenPipeError:
        return READER_LEFT
    except OptionError as error:
        return _complain(error, 2)
    except (GrainlineError, OSError, MemoryError) as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)


def _is_debugged() -> bool:
    try:
        return DEBUG.read() > 0
    except OptionError:  # the command complains
        return False


def _complain(error: object, code: int) -> int:
    print(f"grainline: error: {' '.join(str(error).split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
