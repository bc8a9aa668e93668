"""What ``fbt-rl eval`` does. Torch is imported only where a model or tokenizer is used."""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from fbt_rl.analysis.others.field_map import read_map, reward_settings
from fbt_rl.analysis.others.generations import AGREEMENT, agreement, judge_file
from fbt_rl.analysis.summary import summarise
from fbt_rl.analysis.table import read_generations
from fbt_rl.analysis.temperature import choose_temperature, require_halves
from fbt_rl.artifacts import StageFolder
from fbt_rl.config import EvalStage, RunConfig
from fbt_rl.config.file import ConfigError, parse_config, read_mapping
from fbt_rl.config.task_presets import TASKS
from fbt_rl.data.tables import FORMATS
from fbt_rl.driver.worker import error_log, failure, output_to, record_failure
from reward.load import load_reward


def refuse_other_evaluation(out: Path, settings: dict[str, Any]) -> None:
    """Raises ConfigError where ``out`` holds the result of other ``settings``, which would be lost."""
    if not (folder := StageFolder(out)).finished():
        return
    there = folder.read_result().get("settings", {})
    if odd := [name for name in {**there, **settings} if there.get(name) != settings.get(name)]:
        raise ConfigError(
            f"{out} holds an evaluation with other settings ({', '.join(odd)}): name another folder, or remove it"
        )


def settings_of(model: Path, stage: EvalStage, temperatures: Sequence[float], seed: int) -> dict[str, Any]:
    """What an evaluation's answers and verdicts depend on, but for the content of files; as plain values."""
    chosen = stage.model_dump(mode="json", exclude={"batch_size", "temperature"})
    return {"model": str(model.absolute()), **chosen, "temperatures": list(temperatures), "seed": seed}


class EvaluationFailed(RuntimeError):
    """A worker of an evaluation ended with an error; the message is that of the error."""


def parse_tasks(
    tasks: str, limit: int | None, prompt: str = "prompt", answer: str = "answer", shots: int = 0
) -> dict[str, dict[str, Any]]:
    """Task name -> data section and ``reward`` (where given), as plain values.

    ``tasks``, with commas between: ``arithmetic``, a preset (from the hub), ``PRESET=FILE``, a data file with columns
    ``prompt`` and ``answer``, or a YAML file with a data section and perhaps a ``reward``. Raises ConfigError.
    """
    found: dict[str, dict[str, Any]] = {}
    for given in filter(None, map(str.strip, tasks.split(","))):
        name, _, file = given.partition("=")
        path = Path(name)
        if name == "arithmetic":
            data: dict[str, Any] = {"kind": "arithmetic", "split": "heldout", "size": limit or 1000}
        elif name in TASKS:
            data = {"kind": "files", "preset": name} | ({"paths": [file]} if file else {})
        elif path.suffix in (".yaml", ".yml"):
            data = {"kind": "files", **read_mapping(path)}
        elif path.suffix in FORMATS:
            data = {"kind": "files", "paths": [name], "prompt": prompt, "answer": answer}
        else:
            raise ConfigError(
                f"no task {given!r}; give arithmetic, one of {', '.join(TASKS)}, PRESET=FILE, a data file "
                f"({', '.join(FORMATS)}) or a YAML file with a data section"
            )
        if name != "arithmetic":
            data |= ({"limit": limit} if limit else {}) | ({"shots": shots} if shots else {})
        name = re.sub(r"[^\w-]", "-", path.stem) if path.suffix else name
        found[name if name not in found else f"{name}-{len(found) + 1}"] = data
    if not found:
        raise ConfigError("name at least one task")
    return found


def parse_temperatures(given: str) -> list[float]:
    """Numbers with commas between. Raises ConfigError."""
    try:
        temperatures = [float(part) for part in given.split(",")]
    except ValueError as error:
        raise ConfigError(f"--temperature {given}: expected a number, or several with commas between") from error
    if any(not 0 <= temperature < math.inf for temperature in temperatures):
        raise ConfigError(f"--temperature {given}: expected 0 (greedy) or more")
    return list(dict.fromkeys(temperatures))


def evaluation_config(
    model: Path, tasks: dict[str, dict[str, Any]], settings: dict[str, Any], workers: int | None = None
) -> RunConfig:
    """One eval stage a task; ``workers`` None: as many as fit. Raises ConfigError."""
    stages = {}
    for name, data in tasks.items():
        reward = {"reward": data["reward"]} if "reward" in data else {}
        data = {key: value for key, value in data.items() if key != "reward"}
        stages[name] = {"kind": "eval", "data": data, **settings, **reward}
    resources = {"workers": workers or "auto"}
    return parse_config({"name": "eval", "model": {"path": str(model)}, "stages": stages, "resources": resources})


def evaluate_tasks(
    model: Path, config: RunConfig, temperatures: Sequence[float], seed: int, out: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Task by task its result, also written to ``out`` (of several tasks: to a folder each).

    With several temperatures each has a folder of its own below; the best one is chosen for each mode, on half of the
    problems, and ``modes`` are its figures on the other half. Under torch.distributed every rank calls it, and the
    first one writes.
    """
    from fbt_rl.data.tasks import content_hash, load_problems
    from fbt_rl.evaluation.evaluate import evaluate_model, is_first_rank

    for name, stage in config.stages.items():
        assert isinstance(stage, EvalStage)
        folder = _task_folder(config, name, out)
        settings = settings_of(model, stage, temperatures, seed)
        problems = load_problems(stage.data, seed, needs=("prompt", "answer"))
        if len(temperatures) > 1:
            require_halves(problems["problem_id"])
        reward = load_reward(stage.reward.use, stage.reward.args)
        tables = {
            temperature: evaluate_model(
                model,
                problems,
                stage.modes,
                max_new_tokens=stage.max_new_tokens,
                samples=stage.samples,
                temperature=temperature,
                batch_size=stage.batch_size,
                reward=reward,
                chat=stage.chat,
                stop=stage.stop,
                reasoning_marker=stage.reasoning_marker,
                seed=seed,
                folder=folder if folder is None or len(temperatures) == 1 else folder / f"temperature-{temperature:g}",
            )
            for temperature in temperatures
        }
        result: dict[str, Any] = {"task": name, "data_sha256": content_hash(problems), "settings": settings}
        if len(tables) == 1:
            result["modes"] = summarise(tables[temperatures[0]])
        else:
            chosen = choose_temperature(tables)
            result["modes"] = {mode: values.pop("summary") for mode, values in chosen.items()}
            result["temperatures"] = chosen
        if folder is not None and is_first_rank():
            StageFolder(folder).write_result(result)
        yield name, result


def refuse_other_evaluations(
    model: Path, config: RunConfig, temperatures: Sequence[float], seed: int, out: Path
) -> None:
    """Raises ConfigError where a task's folder in ``out`` holds the result of other settings."""
    for name, stage in config.stages.items():
        assert isinstance(stage, EvalStage)
        settings = settings_of(model, stage, temperatures, seed)
        refuse_other_evaluation(_task_folder(config, name, out) or out, settings)


def _task_folder(config: RunConfig, name: str, out: Path | None) -> Path | None:
    return out / name if out is not None and len(config.stages) > 1 else out


@dataclass(frozen=True)
class RankJob:
    """What :func:`evaluate_tasks` is called with on every rank of a worker group."""

    model: Path
    config: RunConfig
    temperatures: Sequence[float]
    seed: int
    out: Path


def evaluate_on_ray(job: RankJob, address: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """As :func:`evaluate_tasks`, the problems shared by the workers of ``job.config.resources``.

    ``address`` is a Ray cluster that sees the folders; None: Ray is started here. Raises what cannot go well on the
    cluster as PreflightError, EvaluationFailed and ClusterError.
    """
    from fbt_rl.driver.cluster import Cluster
    from fbt_rl.driver.preflight import check_run
    from fbt_rl.driver.progress import Display
    from fbt_rl.driver.resources import plan_group

    folders = {name: StageFolder(_task_folder(job.config, name, job.out) or job.out) for name in job.config.stages}
    for folder in folders.values():
        folder.result_path.unlink(missing_ok=True)  # of an earlier evaluation; its answers are looked at again
    error_log(StageFolder(job.out)).unlink(missing_ok=True)
    display = Display(sys.stderr)
    display.say(f"connecting to Ray at {address}" if address else "starting Ray on this machine")
    with Cluster(address) as cluster:
        available = cluster.available()
        if address is not None:
            check_run(job.config, job.out, list(folders), available)
        gpus = {"gpus_per_worker": 1.0 if available.gpus else 0.0}
        size = plan_group(job.config.resources.model_copy(update=gpus), available)
        display.say(f"workers: {size}")
        waiting, at_work = list(folders), None

        def watch() -> None:
            nonlocal at_work
            if (message := failure(StageFolder(job.out))) is not None:
                raise EvaluationFailed(message)
            if waiting and (at_work is None or at_work.finished()):
                at_work = folders[name := waiting.pop(0)]
                display.start(name, at_work, None)
            display.update()

        try:
            cluster.run(_evaluate_rank, job, size, max_failures=1, storage=job.out, watch=watch)
        finally:
            display.stop()
    for name, folder in folders.items():
        yield name, folder.read_result()


def _evaluate_rank(job: RankJob) -> None:
    import torch

    torch.set_num_threads(job.config.resources.threads)
    rank = int(os.environ.get("RANK", "0"))
    try:
        with output_to(job.out / f"worker-{rank}.log"):
            for _ in evaluate_tasks(job.model, job.config, job.temperatures, job.seed, job.out):
                pass
    except Exception as error:
        record_failure(error, StageFolder(job.out), rank)
        raise


def first_prompts(model: Path, config: RunConfig, seed: int) -> Iterator[tuple[str, str]]:
    """Of each task the exact text that the model would be given for its first problem."""
    from fbt_rl.data.tasks import load_problems, prompt_text
    from fbt_rl.data.tokenization import load_tokenizer

    tokenizer = load_tokenizer(model)
    for name, stage in config.stages.items():
        assert isinstance(stage, EvalStage)
        problems = load_problems(stage.data, seed, needs=("prompt", "answer"))
        yield name, prompt_text(tokenizer, problems[0]["prompt"], chat=stage.chat)


def evaluate_file(
    path: Path, field_map: Sequence[str], out: Path | None, tokenizer: Path | None = None, marker: str | None = None
) -> dict[str, Any]:
    """Judge other people's generations: the result, also written to ``out`` with ``generations.parquet``."""
    columns = read_map(field_map)
    settings = reward_settings(columns)
    given = {"generations": str(path.absolute())}  # the same file may be judged again by another map
    if out is not None:
        refuse_other_evaluation(out, given)
    reward = load_reward(settings.use, settings.args)
    count_tokens = _token_counter(tokenizer) if tokenizer else None
    with tempfile.TemporaryDirectory() if out is None else nullcontext(out) as place:
        folder = StageFolder(Path(place))
        target = folder.generations_path
        faults = judge_file(path, columns, reward, target, count_tokens=count_tokens, marker=marker)
        verdicts, differ = agreement(pq.read_table(target, columns=list(AGREEMENT)))
        result = {
            "settings": given,
            "modes": summarise(read_generations(target)),
            "verdicts": verdicts,
            "differ_first": differ,
            "left_out": faults.count,
            "left_out_first": faults.first,
        }
        if out is not None:
            folder.write_result(result)
    return result


def _token_counter(folder: Path) -> Callable[[list[str]], list[int]]:
    from fbt_rl.data.tokenization import load_tokenizer

    tokenizer = load_tokenizer(folder)
    return lambda texts: [len(ids) for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]  # pyright: ignore


def result_lines(result: dict[str, Any]) -> Iterator[str]:
    """A result as lines to print."""
    width = max(map(len, result["modes"]))
    for mode, values in result["modes"].items():
        yield summary_line(f"{mode:<{width}}", values)
    for mode, counts in result.get("verdicts", {}).items():
        want = f", {counts['no_answer']} of them for want of an answer (see answer_pattern)"
        yield (
            f"{mode:<{width}}  right {counts['right']} of {counts['rows']}, by the file's own verdicts "
            f"{counts['claimed_right']}; {counts['differ']} judged otherwise{want if counts['no_answer'] else ''}"
        )
    yield from result.get("differ_first", ())
    for mode, chosen in result.get("temperatures", {}).items():
        tried = ", ".join(f"{accuracy:.1%} at {each}" for each, accuracy in chosen["dev_accuracy"].items())
        yield f"{mode:<{width}}  temperature {chosen['temperature']:g}, chosen on the other half of problems: {tried}"
    if result.get("left_out"):
        yield f"left out: {result['left_out']} rows or samples that could not be used"


def summary_line(mode: str, values: dict[str, Any]) -> str:
    """One mode of an evaluation in one line."""
    if values["accuracy"] is None:
        return f"{mode}  none of the {values['unjudged']} answers could be judged"
    low, high = values["accuracy_ci"]
    truncated = "not known" if values["truncated"] is None else f"{values['truncated']:.1%}"
    return (
        f"{mode}  right {values['accuracy']:.1%} (95 % interval {low:.1%} to {high:.1%}) of {values['n']}, "
        f"median length {values['median_length']:g}, truncated {truncated}"
    )
