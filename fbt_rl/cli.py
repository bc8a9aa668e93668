"""The commands. Exit codes: 0 done, 1 the work failed, 2 bad input, 130 Ctrl-C, 143 terminated.

Whatever a command needs is imported inside it, so that ``--help`` and ``--dry-run`` stay quick.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fbt_rl.configs import SHIPPED_CONFIGS
from reward.cli import app as reward_commands

app = typer.Typer(
    help="Train full-bandwidth transformers and post-train them with RL.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(reward_commands, name="reward")
JOBS_ADDRESS = "http://127.0.0.1:8265"

Config = Annotated[
    str, typer.Argument(help=f"A YAML file, or the name of a shipped config ({', '.join(SHIPPED_CONFIGS)}).")
]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings to override.")]
JobsAddress = Annotated[str, typer.Option("--address", help="The cluster's Ray Jobs server.")]
Job = Annotated[str, typer.Argument(help="The job's id, as submit printed it.")]
Model = Annotated[Path, typer.Argument(help="A model folder, such as a stage's model/.")]
Mode = Literal["standard", "soft", "fused"]
NewTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of an answer at most; default 256, less where the context is short.")
]


@app.command()
def run(
    config: Config,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="The run's folder; default runs/<name>.")] = None,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster (HOST:PORT or auto); default: Ray started here.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print config, stages and resources, and stop.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; the old folder is renamed and kept.")] = False,
) -> None:
    """Run a config's stages. The same command goes on where an interrupted run stopped."""
    from fbt_rl.config.file import load_config
    from fbt_rl.driver import pipeline

    settings = load_config(config, overrides or [])
    folder = pipeline.choose_run_dir(settings, run_dir)
    # In a Ray job, and where the user's shell says so, the cluster is known without being named.
    known = os.environ.get("RAY_ADDRESS", "")
    address = address or (known if known and "://" not in known else None)
    if dry_run:
        pipeline.dry_run(settings, folder, fresh=fresh, local=address is None)
    else:
        pipeline.run(settings, folder, address=address, fresh=fresh)


@app.command("eval")
def evaluate(
    model: Annotated[Path | None, typer.Argument(help="A model folder, such as a stage's model/.")] = None,
    tasks: Annotated[
        str, typer.Option(help="With commas between: arithmetic, a known set, SET=FILE, a data file, or a YAML file.")
    ] = "arithmetic",
    prompt: Annotated[str, typer.Option(help="Column of the prompts in a data file.")] = "prompt",
    answer: Annotated[str, typer.Option(help="Column of the answers in a data file.")] = "answer",
    shots: Annotated[int, typer.Option(min=0, help="Solved examples before each prompt.")] = 0,
    plain: Annotated[bool, typer.Option("--plain", help="Prompts as they are, without the chat template.")] = False,
    stop_at: Annotated[
        list[str] | None, typer.Option("--stop", help="Text before which an answer ends; may be repeated.")
    ] = None,
    show_prompt: Annotated[
        bool, typer.Option("--show-prompt", help="Print the exact prompt of each task's first row, and stop.")
    ] = False,
    modes: Annotated[
        str | None, typer.Option(help="Decoding modes, with commas between; default: all that the model has.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Problems of a task at most; of arithmetic 1000.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Answers to each problem.")] = 1,
    temperature: Annotated[
        str, typer.Option(help="0 is greedy; of several the best on half of the problems, reported on the other half.")
    ] = "0",
    max_new_tokens: NewTokens = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows decoded together.")] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for the answers and the result.")] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Ray workers that share the problems; default: none, with --address all.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="A Ray cluster (HOST:PORT or auto) that sees the model and --out.")
    ] = None,
    generations: Annotated[Path | None, typer.Option(help="Judge this file of another system's answers.")] = None,
    field_map: Annotated[
        list[str] | None, typer.Option("--map", metavar="COLUMN=PATH", help="Where it keeps what; or a YAML file.")
    ] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="With --generations: counts the tokens.")] = None,
    reasoning_marker: Annotated[str, typer.Option(help="Tokens up to it count as reasoning.")] = "</think>",
) -> None:
    """Let a model answer problems in each decoding mode and grade the answers; or grade a file of answers."""
    from fbt_rl.driver import evaluate as eval_commands

    if (model is None) == (generations is None):
        raise typer.BadParameter("name a model, or --generations FILE with --map, and not both")
    if generations is not None:
        result = eval_commands.evaluate_file(generations, field_map or [], out, tokenizer, reasoning_marker)
        typer.echo("\n".join(eval_commands.result_lines(result)))
        return
    from fbt_rl.driver.inputs import absolute_paths
    from fbt_rl.driver.preflight import check_run
    from fbt_rl.driver.resources import this_machine

    assert model is not None
    settings = {
        "modes": [mode.strip() for mode in modes.split(",")] if modes else eval_commands.modes_of(model, _note),
        "samples": samples,
        "max_new_tokens": max_new_tokens or 1,  # 1: until the prompts are known
        "batch_size": batch_size,
        "chat": not plain,
        "stop": [text.replace("\\n", "\n") for text in stop_at or []],
        "reasoning_marker": reasoning_marker,
    }
    temperatures = eval_commands.parse_temperatures(temperature)
    data = eval_commands.parse_tasks(tasks, limit, prompt, answer, shots)
    config = eval_commands.evaluation_config(model, data, settings, workers)
    on_ray = address is not None or (workers or 1) > 1
    if on_ray and out is None:
        raise typer.BadParameter("--workers and --address need --out, a folder that all workers see")
    if address is None:
        check_run(config, out or Path.cwd(), list(config.stages), this_machine())
    config = absolute_paths(config)
    _quiet_torch()
    if show_prompt:
        for name, text in eval_commands.first_prompts(model, config, seed):
            typer.echo(text if len(data) == 1 else f"{name}:\n{text}\n")
        return
    if max_new_tokens is None:
        config = eval_commands.with_default_new_tokens(model, config, seed, _note)
    if out is not None:
        eval_commands.refuse_other_evaluations(model, config, temperatures, seed, out)
    if on_ray and out is not None:
        job = eval_commands.RankJob(model.absolute(), config, temperatures, seed, out.absolute())
        results = eval_commands.evaluate_on_ray(job, address)
    else:
        results = eval_commands.evaluate_tasks(model, config, temperatures, seed, out)
    for name, result in results:
        lead = "" if len(data) == 1 else f"{name}:\n"
        typer.echo(lead + "\n".join(eval_commands.result_lines(result)))


@app.command()
def compare(
    evaluations: Annotated[
        list[str], typer.Argument(help="Folders of evaluations (or PATH:MODE); the first is compared with the others.")
    ],
    margin: Annotated[float, typer.Option(min=0.0, help="A loss of accuracy below it counts as no worse.")] = 0.03,
    out: Annotated[Path | None, typer.Option(help="A JSON file for the numbers.")] = None,
) -> None:
    """Compare evaluations on the problems they share: a paired table, and what it shows in plain sentences."""
    from fbt_rl.analysis.sides import compare_evaluations, comparison_text

    typer.echo(comparison_text(compare_evaluations(evaluations, margin, out)))


@app.command()
def generate(
    model: Model,
    prompts: Annotated[list[str], typer.Argument(help="One or more prompts.")],
    mode: Annotated[Mode, typer.Option(help="Decoding mode.")] = "standard",
    max_new_tokens: NewTokens = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is, without the chat template.")] = False,
) -> None:
    """Print a model's completion of each prompt."""
    _quiet_torch()
    from fbt_rl.data.tasks import encode_prompt
    from fbt_rl.data.tokenization import load_tokenizer
    from fbt_rl.decoding import SamplingParams, decode, default_new_tokens
    from fbt_rl.evaluation.evaluate import eos_token_ids
    from fbt_rl.model import load_model

    loaded, tokenizer = load_model(model), load_tokenizer(model)
    encoded = [tokenizer.encode(text) if raw else encode_prompt(tokenizer, text) for text in prompts]
    if max_new_tokens is None:
        max_new_tokens = default_new_tokens(loaded.config, max(map(len, encoded)), _note)
    params = SamplingParams(
        mode=mode,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        eos_token_ids=eos_token_ids(loaded, tokenizer),
    )
    for completion in decode(loaded, encoded, params, seed=seed):
        typer.echo(tokenizer.decode(completion.token_ids, skip_special_tokens=True))


@app.command()
def report(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    reference: Annotated[
        Literal["paper"] | None, typer.Option(help="Published numbers to lay beside the run's; default: of its config.")
    ] = None,
) -> None:
    """Write the report of a run's finished stages."""
    from fbt_rl.report import write_report

    typer.echo(write_report(run_dir, reference))


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help="Folder of a pretrained decoder.")],
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    fusion: Annotated[Literal["gate", "concat", "add"], typer.Option(help="How a latent enters.")] = "gate",
) -> None:
    """Give a pretrained decoder latent feedback; its standard mode computes what it did before."""
    _quiet_torch()
    from fbt_rl.model.retrofit import convert

    convert(source, out, fusion=fusion)
    typer.echo(f"wrote {out}")


@app.command()
def submit(
    config: Config,
    overrides: Overrides = None,
    address: JobsAddress = JOBS_ADDRESS,
    run_dir: Annotated[
        Path | None, typer.Option(help="The run's folder on the cluster; default ~/fbt-rl/runs/<name> there.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over; the old folder is renamed and kept.")] = False,
) -> None:
    """Send a config, with this code and the files it names, to a cluster as a Ray job."""
    from fbt_rl.config.file import load_config
    from fbt_rl.driver import jobs

    job = jobs.submit(load_config(config, overrides or []), address, run_dir=run_dir, fresh=fresh)
    typer.echo(job)


@app.command()
def status(job: Job, address: JobsAddress = JOBS_ADDRESS) -> None:
    """Print how a job stands; exit code 1 if it failed or was stopped."""
    from fbt_rl.driver import jobs

    found = jobs.status(job, address)
    typer.echo(found)
    raise typer.Exit(0 if found.good else 1)


@app.command()
def logs(
    job: Job,
    address: JobsAddress = JOBS_ADDRESS,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job ends.")] = False,
) -> None:
    """Print what a job has written; with -f the exit code is that of status."""
    from fbt_rl.driver import jobs

    for text in jobs.logs(job, address, follow=follow):
        typer.echo(text, nl=False)
    if follow:
        raise typer.Exit(0 if jobs.status(job, address).good else 1)


@app.command()
def stop(job: Job, address: JobsAddress = JOBS_ADDRESS) -> None:
    """Stop a job and wait until it has ended. Submitting it again goes on where it stopped."""
    from fbt_rl.driver import jobs

    typer.echo(jobs.stop(job, address))


def _quiet_torch() -> None:
    """One thread unless told otherwise: on shared cores more of them spin. No progress bars for files."""
    threads = int(os.environ.setdefault("OMP_NUM_THREADS", "1"))
    import torch
    from transformers.utils import logging

    torch.set_num_threads(threads)
    logging.disable_progress_bar()


def _note(sentence: str) -> None:
    """Tell of what was decided in the user's place."""
    typer.echo(sentence, err=True)


# Commands that leave everything as it was; what else is stopped before its end may have written a part.
_READING = ("check", "generate", "list", "logs", "status")


def _stop(number: int, _frame: Any) -> None:
    command, *given = [word for word in sys.argv[1:] if word != "reward"] or [""]
    if command == "run" or (command == "eval" and any(word.startswith("--out") for word in given)):
        typer.echo("stopping; the same command goes on where this one stops", err=True)
    else:
        typer.echo(f"stopped{'; nothing was changed' if command in _READING else ' before it was done'}", err=True)
    sys.exit(128 + number)


def main() -> None:
    """Run a command; every expected failure ends with one message on stderr and an exit code."""
    from fbt_rl.driver.lock import Locked
    from fbt_rl.driver.quiet import quiet_libraries
    from reward.apart import RewardTimeout

    quiet_libraries()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        app()
    except RewardTimeout as error:
        _fail(error, 1)
    except ValueError as error:  # ConfigError, DataError, RewardError, RunRefused, PreflightError, ...
        _fail(error, 2)
    except (OSError, Locked) as error:
        _fail(error, 1)
    except RuntimeError as error:
        if not type(error).__module__.startswith("fbt_rl"):
            raise
        _fail(error, 1)


def _fail(error: Exception, code: int) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
