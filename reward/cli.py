"""The commands on rewards: ``fbt-rl reward ...``, or ``python -m reward ...`` where this package is alone.

Exit codes are those of :mod:`fbt_rl.cli`: 0 done, 1 the work failed, 2 bad input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    help="List rewards, check one, or score completions in a file.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Spec = Annotated[
    str, typer.Argument(help="A name of reward list, package.module:function or path/to/file.py:function.")
]
Args = Annotated[list[str] | None, typer.Option("--arg", metavar="NAME=VALUE", help="A setting of the reward.")]
Limit = Annotated[
    float | None, typer.Option("--time-limit", min=0.001, max=604_800, help="Seconds of one call; of your own 60.")
]


@app.command("list")
def list_() -> None:
    """Print the rewards that can be named."""
    from reward.commands import list_rewards

    for line in list_rewards():
        typer.echo(line)


@app.command()
def check(
    spec: Spec,
    data: Annotated[Path | None, typer.Option(help="JSON lines with the reward's columns; default: one row.")] = None,
    arg: Args = None,
    time_limit: Limit = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Rows at most.")] = None,
    shaping: Annotated[
        bool, typer.Option("--shaping", help="Any score will do: it does not say right or wrong.")
    ] = False,
) -> None:
    """Right completions must score 1, empty ones and garbage 0; exit code 1 if they do not."""
    from reward.commands import check_reward

    trials = check_reward(_load(spec, arg, time_limit), data, limit, say=lambda text: typer.echo(text, err=True))
    for trial in trials:
        typer.echo(trial)
    if shaping:
        good = not any(trial.unjudged for trial in trials)
    else:
        good = all(trial.as_wanted == trial.rows for trial in trials)
        for line in (line for trial in trials for line in trial.odd):
            typer.echo(line, err=True)
    typer.echo("ok" if good else "failed")
    raise typer.Exit(0 if good else 1)


@app.command()
def score(
    spec: Spec,
    data: Annotated[Path, typer.Option(help="JSON lines with completion and the reward's columns.")],
    out: Annotated[Path, typer.Option(help="The file to write: the same rows with score, correct and error.")],
    arg: Args = None,
    time_limit: Limit = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
) -> None:
    """Grade completions in a file."""
    from tqdm import tqdm

    from reward.commands import check_target, score_file

    check_target(data, out, force=force)
    reward = _load(spec, arg, time_limit)
    with tqdm(unit="row", disable=None) as bar:  # None: shown on a terminal only
        scored = score_file(reward, data, out, force=force, progress=bar.update)
    for line in scored.bad:
        typer.echo(line, err=True)
    typer.echo(scored)


def _load(spec: str, given: list[str] | None, time_limit_s: float | None) -> Any:
    from reward.base import RewardError
    from reward.load import load_limited

    args = {}
    for part in given or []:
        name, sign, value = part.partition("=")
        if not (name and sign):
            raise RewardError(f"--arg {part!r} is not of the form name=value")
        try:
            args[name] = json.loads(value)
        except ValueError:
            args[name] = value  # plain text needs no quotes
    return load_limited(spec, args, time_limit_s)


def main() -> None:
    """Run a command by itself; expected failures are one message and an exit code."""
    from reward.apart import RewardTimeout

    try:
        app()
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(1 if isinstance(error, OSError | RewardTimeout) else 2) from error
