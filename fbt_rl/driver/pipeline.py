"""A run: its stages in order, then the report.

``run`` plans (:mod:`fbt_rl.driver.plan`), looks for what would go wrong (:mod:`fbt_rl.driver.preflight`), starts
workers (:mod:`fbt_rl.driver.cluster`) on the stages that are left and follows them by the run folder. A
finished run is recognised without importing torch or starting ray.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fbt_rl.artifacts import RunFolder, StageFolder, write_json, write_text
from fbt_rl.config import RunConfig
from fbt_rl.config.file import dump_config
from fbt_rl.driver.inputs import Digests, absolute_paths, input_hash, map_files
from fbt_rl.driver.lock import Locked, lock
from fbt_rl.driver.plan import (
    PlannedStage,
    check_folder,
    check_plan,
    check_worker_count,
    describe_plan,
    known_digests,
    plan,
)
from fbt_rl.driver.preflight import check_run
from fbt_rl.driver.progress import Display, duration
from fbt_rl.driver.provenance import provenance
from fbt_rl.driver.resources import GroupSize, plan_group, this_machine
from fbt_rl.driver.worker import Assignment, error_log, failure, work, workers_lock

# Which function runs a stage of each kind.
STAGE_FUNCTIONS = {
    "pretrain": "pretrain.train:run",
    "extend": "pretrain.train:run",
    "sft": "sft.train:run",
    "rl": "rl.train:run",
    "eval": "fbt_rl.evaluation.evaluate:run",
}


class StageFailed(RuntimeError):
    """A stage ended with an error; the message is that of the error."""


def choose_run_dir(config: RunConfig, given: Path | None = None) -> Path:
    """``--run-dir``, else the config's ``run_dir``, else ``runs/<name>``, from the current folder.

    In a Ray job with a working folder of its own, which Ray removes after the job, from ``~/fbt-rl``.
    """
    path = (given or Path(config.run_dir or f"runs/{config.name}")).expanduser()
    start = Path.cwd()
    return (Path.home() / "fbt-rl" if "working_dir_files" in start.parts else start) / path


def run(
    config: RunConfig,
    run_dir: Path,
    *,
    address: str | None = None,
    fresh: bool = False,
    functions: Mapping[str, str] = STAGE_FUNCTIONS,
    display: Display | None = None,
) -> None:
    """Bring the run in ``run_dir`` to its end: the stages that are not finished, then the report.

    ``address``: a Ray cluster to run on; else a local one is started. ``fresh``: a run that is
    already there is first renamed to ``<run>.before-<time>``. Raises RunRefused, PreflightError,
    ResourceError, Locked, ClusterError or StageFailed.
    """
    display = display or Display()
    run_dir = run_dir.absolute()
    folder = RunFolder(run_dir)
    check_folder(run_dir)
    if fresh and run_dir.exists():
        _set_aside(run_dir, display)
    digests = known_digests(config, run_dir)
    planned = _checked_plan(config, run_dir, digests)
    page = folder.report_dir / "index.html"
    if not _pending(planned) and folder.read_state().get("status") == "finished" and page.is_file():
        display.say(f"{run_dir} is finished, nothing to do; the report is {page}")
        return
    if address is None:
        check_run(config, run_dir, [stage.name for stage in _pending(planned)], this_machine())
    run_dir.mkdir(parents=True, exist_ok=True)
    with _only_driver(run_dir):
        planned = _checked_plan(config, run_dir, digests)  # again, now that nobody else works here
        _Start(config, folder, planned, digests, functions, display).carry_out(address)


def dry_run(config: RunConfig, run_dir: Path, *, fresh: bool = False, local: bool = True) -> None:
    """Print the resolved config and what :func:`run` would do; raise what it would refuse or find wrong.

    ``local``: on this machine; what a cluster has is not known before it is reached.
    """
    show = Display().say
    show(dump_config(config))
    check_folder(run_dir)
    planned = plan(config, run_dir / ".fresh" if fresh else run_dir, known_digests(config, run_dir))
    show(f"run folder: {run_dir}{' (renamed first)' if fresh and run_dir.exists() else ''}\n{describe_plan(planned)}")
    if local:
        machine = this_machine()
        show(f"this machine: {machine.cpus} CPU cores, {machine.gpus} GPUs")
        check_run(config, run_dir, [stage.name for stage in _pending(planned)], machine)
        show(f"workers: {plan_group(config.resources, machine)}")
    else:
        show(f"workers: {config.resources.workers}, on the cluster")
    check_plan(planned, run_dir)


def _checked_plan(config: RunConfig, run_dir: Path, digests: Digests) -> list[PlannedStage]:
    planned = plan(config, run_dir, digests)
    check_plan(planned, run_dir)
    return planned


def _pending(planned: Sequence[PlannedStage]) -> list[PlannedStage]:
    return [stage for stage in planned if stage.action != "skip"]


class _Start:
    """One start of a run, by the process that holds its folder's lock."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        planned: Sequence[PlannedStage],
        digests: Digests,
        functions: Mapping[str, str],
        display: Display,
    ):
        self.config = config
        self.folder = folder
        self.planned = planned
        self.digests = digests
        self.functions = functions
        self.display = display
        self.queue: list[PlannedStage] = []  # what is left of the worker group's stages; the first is running
        self.began = 0.0
        before = folder.read_state()
        notes = before.get("stages", {})
        self.state: dict[str, Any] = {
            "name": config.name,
            "status": "running",
            "created": before.get("created", _now()),
            "seed": config.seed,
            **provenance(),
            "stages": {stage.name: notes.get(stage.name, {"kind": stage.kind}) for stage in planned},
        }
        for stage in planned:
            status = "finished" if stage.action == "skip" else "pending"
            self.state["stages"][stage.name].update(status=status, hash=input_hash(stage.inputs))

    def carry_out(self, address: str | None) -> None:
        """Run what is pending and write the report; ``run.json`` says how it ended."""
        write_text(self.folder.config_path, dump_config(self.config))
        self._save("running")
        try:
            if _pending(self.planned):
                self._run_stages(address)
            self.display.say("writing the report")
            from fbt_rl.report import write_report

            page = write_report(self.folder.path)
        except BaseException as error:
            self.display.stop()
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            status = "interrupted" if stopped else "failed"
            with suppress(OSError):  # a full disk, perhaps the very error
                if self.queue:
                    self._note(self.queue[0], status=status)
                self._save(status, error=None if stopped else str(error))
            raise
        self._save("finished")
        self.display.say(f"finished; the report is {page}")

    def _run_stages(self, address: str | None) -> None:
        pending = _pending(self.planned)
        self.display.say(f"{self.folder.path}\n{describe_plan(self.planned)}")
        self.display.say(f"connecting to Ray at {address}" if address else "starting Ray on this machine")
        from fbt_rl.driver.cluster import Cluster, ClusterError

        with Cluster(address) as cluster:
            available = cluster.available()
            if address is not None:
                check_run(self.config, self.folder.path, [stage.name for stage in pending], available)
            size = plan_group(self.config.resources, available)
            check_worker_count(pending, self.folder.path, size.workers)
            self.display.say(f"workers: {size}")
            config = self._config_for_workers()
            for group in _groups(pending, size):
                for stage in group:
                    self._prepare(stage, size)
                stages = {stage.name: self.functions[stage.kind] for stage in group}
                self.queue = list(group)
                self._begin()
                try:
                    cluster.run(
                        work,
                        Assignment(config, self.folder.path, stages, size.threads),
                        size,
                        max_failures=self.config.resources.max_failures,
                        storage=self.folder.path,
                        watch=self._watch,
                    )
                except ClusterError as error:
                    if self.queue:  # else all is done, and only the group's end went wrong
                        raise StageFailed(f"stage {self.queue[0].name!r} failed, {error}") from error
                if self.queue:
                    raise StageFailed(f"stage {self.queue[0].name!r} ended without a result")

    def _prepare(self, stage: PlannedStage, size: GroupSize) -> None:
        """Clear what an earlier start left and what does not hold any more; note what the stage is made from."""
        folder = self.folder.stage(stage.name)
        if stage.changes:
            shutil.rmtree(folder.path)
        error_log(folder).unlink(missing_ok=True)
        content = {
            "name": stage.name,
            "config": self.config.stages[stage.name].model_dump(mode="json"),
            "inputs": stage.inputs,
            "hash": input_hash(stage.inputs),
            "workers": size.workers,
            "files": self.digests.known,
        }
        write_json(folder.stage_json, content)

    def _config_for_workers(self) -> RunConfig:
        """With absolute paths, and the user's reward files copied into the run folder, which every worker sees."""

        def reachable(path: str, kind: str) -> str:
            if kind != "code":
                return path
            source = Path(path)
            target = self.folder.path / "user_code" / self.digests.of(source)[:12] / source.name
            write_text(target, source.read_text(encoding="utf-8"))
            return str(target)

        return map_files(absolute_paths(self.config), reachable)

    # --- following the workers -------------------------------------------------------------------

    def _begin(self) -> None:
        """Announce the stage at the head of the queue."""
        stage = self.queue[0]
        steps = getattr(self.config.stages[stage.name], "steps", None)
        place = [other.name for other in self.planned].index(stage.name) + 1
        what = f"{stage.kind}, {steps} steps" if steps else stage.kind
        folder = self.folder.stage(stage.name)
        self.display.start(f"[{place}/{len(self.planned)}] {stage.name} ({what})", folder, steps)
        self.began = time.monotonic()
        self._note(stage, status="running", started=_now())

    def _watch(self) -> None:
        """Pass on progress, finished stages and errors of the group at work."""
        while self.queue:
            stage = self.queue[0]
            folder = self.folder.stage(stage.name)
            if (message := failure(folder)) is not None:
                raise StageFailed(f"stage {stage.name!r} failed on {message}\nThe traceback is in {error_log(folder)}")
            self.display.update()
            if not folder.finished():
                return
            seconds = time.monotonic() - self.began
            self.display.stop(f"  finished in {duration(seconds)}{_outcome(folder)}")
            self._note(stage, status="finished", ended=_now(), seconds=round(seconds, 1))
            self.queue.pop(0)
            if self.queue:
                self._begin()

    def _note(self, stage: PlannedStage, **values: Any) -> None:
        self.state["stages"][stage.name].update(values)
        self._save("running")

    def _save(self, status: str, error: str | None = None) -> None:
        self.state.update(status=status, error=error, updated=_now())
        self.folder.write_state(self.state)


def _groups(pending: list[PlannedStage], size: GroupSize) -> list[list[PlannedStage]]:
    """Stages that share a worker group: all on CPUs, where starting one costs more than a short stage.

    With GPUs every stage gets new processes, so that none finds memory held by the one before.
    """
    return [[stage] for stage in pending] if size.gpus else [pending]


@contextmanager
def _only_driver(run_dir: Path) -> Iterator[None]:
    """The lock of the one process that runs this folder; waits for a killed one's workers to be gone."""
    try:
        with lock(run_dir / ".lock"):
            with lock(workers_lock(run_dir), wait_s=60):
                pass
            yield
    except Locked as error:
        raise Locked(f"another fbt-rl run is at work in {run_dir} ({error}): wait for it or stop it") from error


def _set_aside(run_dir: Path, display: Display) -> None:
    with _only_driver(run_dir):
        kept = run_dir.with_name(f"{run_dir.name}.before-{datetime.now(UTC):%Y%m%d-%H%M%S}")
        run_dir.rename(kept)
    display.say(f"starting over; the old run is kept in {kept}")


def _outcome(folder: StageFolder) -> str:
    """The figures of a finished stage that are worth a glance."""
    result = folder.read_result()
    if "modes" in result:
        shares = {mode: values["accuracy"] for mode, values in result["modes"].items()}
        return ": right " + ", ".join(
            f"{mode} {'not judged' if share is None else f'{share:.1%}'}" for mode, share in shares.items()
        )
    shown = [f"{key} {result[key]:.4g}" for key in ("loss", "reward", "accuracy") if key in result]
    return f": {', '.join(shown)}" if shown else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
