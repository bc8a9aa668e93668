"""Whatever stands in a config, it is taken or refused with the path of the key: configs with one or two slips in them.

``python tests/config/test_config_mutations.py COUNT SEED`` tries more of them than the test and prints what came of it.
"""

import copy
import datetime
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fbt_rl.analysis.others.field_map import GenerationsMap
from fbt_rl.config import RunConfig
from fbt_rl.config.file import ConfigError, dump_config, load_config, parse_config
from fbt_rl.config.sections import Strict
from fbt_rl.driver.preflight import PreflightError, check_run
from fbt_rl.driver.resources import Available

SHIPPED = sorted((Path(__file__).parents[2] / "fbt_rl" / "configs").glob("*.yaml"))
FULL = """
name: full
run_dir: runs/full
tokenizer: {kind: bpe, vocab_size: 512}
trackers: [wandb]
deepspeed: {extra: {zero_optimization: {overlap_comm: false}}}
reference: paper
stages:
  pretrain:
    data: [{kind: files, paths: [a.txt]}, {kind: arithmetic, size: 10}]
    kind: pretrain
    steps: 10
    batch_rows: 4
    micro_batch_rows: 2
    row_length: 64
    seed: 3
    optimizer: {name: normuon, learning_rate: 0.02, adam_learning_rate: 1.0e-3}
    objective: {passes: [{weights: [1]}, {start_fraction: 0.5, weights: [0.5, 0.5]}]}
  extend:
    kind: extend
    data: [{kind: arithmetic, size: 10}]
    steps: 2
    batch_rows: 4
    row_length: 64
    rope_theta_full: 20000.0
    optimizer: {learning_rate: 1.0e-3}
    objective: {passes: [{weights: [0, 1]}]}
  sft:
    kind: sft
    init_from: extend
    data:
      kind: files
      paths: [a.jsonl]
      prompt: q
      completion: a
      answer: a
      problem_id: id
      level: l
      subject: s
      shots: 1
      shots_paths: [b.jsonl]
      limit: 5
    steps: 2
    batch_rows: 4
    row_length: 64
    optimizer: {learning_rate: 1.0e-3}
    objective: {passes: [{weights: [0, 1]}]}
    lora: {r: 4}
  rl:
    kind: rl
    data: {kind: files, preset: gsm8k}
    scorer: {use: jacobi, passes: 3, detach: true}
    rewards:
      - {use: math, args: {numeric: true, forms: [boxed], digits: 4}}
      - {use: "./mine.py:short", weight: 0.5, args: {limit: 3}, time_limit_s: 5}
    guard: {data: {kind: arithmetic, size: 10}}
    limits: {accuracy: {warn: 0.5, stop: 0.1}, residual: {warn: 0.1, stop: 0.2}}
    steps: 2
    prompts_per_step: 4
    group_size: 4
    max_new_tokens: 8
    degenerate_groups: drop
    max_resamples: 1
    optimizer: {learning_rate: 1.0e-3}
    lora: {}
  halves:
    kind: rl
    data: {kind: arithmetic, size: 10}
    saved_batch: batch
    length: {use: l1_exact, target: 10}
    steps: 1
    prompts_per_step: 4
    group_size: 4
    max_new_tokens: 8
    optimizer: {learning_rate: 1.0e-3}
  check:
    kind: eval
    data: {kind: files, prompt: q, tests: t, extra_tests: u, entry_point: e, setup: s, hub: {path: x/y, name: n}}
    modes: [standard, soft]
    stop: ["\\n\\n"]
    temperature: 0.5
    max_new_tokens: 8
"""
ODD: list[Any] = [
    *([], [1], [[[]]], {}, {"a": 1}, {"a": {"b": [{"c": None}]}}, {1: 2}, {None: 1}, {"": ""}, [{"kind": "rl"}]),
    *(None, True, False, 0, 1, -1, 3, 0.5, -0.5, 1e30, -1e30, 10**30, -(10**30), 10**400, 1e-300, 2**31, 2**63),
    *(float("nan"), float("inf"), float("-inf"), "nan", ".inf", "inf", "1e5", "12", "true"),
    *(
        "",
        " ",
        "x",
        "x" * 10_000,
        "no_such",
        "./no.py:f",
        "a:b:c",
        ":",
        "a.b",
        "\0",
        "é\u202e\U0001f600",
        "\ud83d",
        "\n",
    ),
    *(datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 1, 1), b"bytes", {"a", "b"}, (1, 2)),
]
KEYS = [
    "x",
    "kind",
    "use",
    "stepz",
    "name",
    "é",
    "",
    "a.b",
    "x" * 300,
    1,
    None,
    True,
    2.5,
    datetime.date(2026, 1, 1),
]
TEXTS = [  # what a value may look like in YAML and on the command line
    *("", "~", "yes", "no", "0x10", "1_000", "1e5", ".inf", "-.inf", ".nan", "2026-01-01", "2026-99-99", "12:30:45"),
    *(
        "[",
        "[1, 2",
        "{",
        "{a: }",
        "{a: 1, a: 2}",
        "'",
        '"\\x',
        "*nowhere",
        "&a [*a]",
        "&a {b: *a}",
        "!!int x",
        "!!float x",
    ),
    *("!!bool x", "!!timestamp x", "!!binary x", "!!python/object:os.system x", "!odd x", "? [1]", "{[1]: 2}", "<<: 3"),
    *("[" * 2000, "1" * 5000, "{a: &b [1, 1], c: [*b, *b]}", "\t", "\x07", "|", ">-", "%YAML 9", "--- 1\n--- 2", "- 1"),
    "[&a [1,1], &b [*a,*a,*a,*a,*a,*a], &c [*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c], &e [*d,*d,*d,*d,*d,*d], *e]",
]
PLACES = ["stages.rl.mode", "stages.rl.rewards.0.args.x", "stages.rl", "stages", "model.preset", "seed", "seed.x"]
PLACES += [
    "stages.sft.data.limit",
    "stages.pretrain.data.9.size",
    "stages.pretrain.data.².size",
    "trackers.0",
    "a..b",
    ".",
]


# --- slips ---------------------------------------------------------------------------------------


def nodes(value, path=()):
    yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield from nodes(entry, (*path, key))


def at(values, path):
    for key in path:
        values = values[key]
    return values


def mutate(values, draw):
    """Change ``values`` in one place, and say where."""
    path = draw.choice([path for path in nodes(values) if path] or [()])
    if not path:
        return path
    parent, key = at(values, path[:-1]), path[-1]
    kind = draw.choice(["replace"] * 6 + ["delete", "add", "add", "rename", "copy", "repeat"])
    if kind == "delete":
        del parent[key]
    elif kind == "add" and isinstance(parent, dict):
        path = (*path[:-1], draw.choice(KEYS))
        parent[path[-1]] = copy.deepcopy(draw.choice(ODD))
    elif kind == "rename" and isinstance(parent, dict):
        parent[new := f"{key}{draw.choice('sx_é.')}"] = parent.pop(key)
        path = (*path[:-1], draw.choice([key, new]))
    elif kind == "copy":
        parent[key] = copy.deepcopy(at(values, draw.choice(list(nodes(values)))))
    elif kind == "repeat" and isinstance(parent, list):
        parent.extend(copy.deepcopy(parent))
    else:
        parent[key] = copy.deepcopy(draw.choice(ODD))
    return path


def complaint(error, paths):
    """Of a message the first line that does not start with a key that has to do with one of the changed ``paths``."""
    for line in str(error).splitlines():
        named = re.match(r"((?! \S)[^:][^:]*(?::(?! )[^:]*)*): \S", line)
        if named is None:
            return line
        told = named[1].removesuffix("...")
        if not any(_concerns(told, line, [str(key) for key in path]) for path in paths):
            return line
    return None


def _concerns(told, line, path):
    """Whether the key ``told`` lies above, below or beside the changed one, or the message has its name."""
    typed, beside = ".".join(path), ".".join(path[:-1])
    related = typed.startswith(told) or told.startswith(beside) or (path[0] == "stages" and told.startswith("stages."))
    return related or path[-1] in line


def try_mutations(count, seed, where, preflight_share):
    """How many configs were taken and refused; and what went wrong."""
    draw = random.Random(seed)
    tally, wrong = Counter(), []
    texts = [path.read_text() for path in SHIPPED]
    plain = [*map(yaml.safe_load, texts), yaml.safe_load(FULL)]
    whole = yaml.safe_load(dump_config(parse_config(plain[-1])))
    bases = [*plain, whole, whole]
    file = where / "config.yaml"

    def attempt(kind, call, paths, what):
        try:
            result = call()
        except (ConfigError, PreflightError) as error:
            tally[f"{kind}, refused"] += 1
            if (line := complaint(error, paths)) is not None:
                wrong.append((what, f"without the key: {line}"))
            return None
        except Exception as error:
            wrong.append((what, f"{type(error).__name__}: {error}"[:300]))
            return None
        tally[f"{kind}, taken"] += 1
        return result

    for number in range(count):
        values = copy.deepcopy(draw.choice(bases))
        if number % 25 == 0:  # as text: on the command line, or in a file
            key, text = draw.choice(PLACES), draw.choice(TEXTS)
            attempt("overrides", lambda: load_config("smoke", [f"{key}={text}"]), [key.split(".")], (key, text))  # noqa: B023
            lines = draw.choice(texts).splitlines()
            place = draw.randrange(len(lines))
            new = [
                text,
                lines[place] + text,
                f"{lines[place].partition(':')[0]}: {text}",
                lines[place] * 2,
                lines[place],
            ]
            lines.insert(place, draw.choice(new))
            file.write_bytes("\n".join(lines).encode(errors="surrogatepass"))
            attempt("files", lambda: load_config(file), [["stages"], [str(file)]], (lines[place - 1 : place + 2],))
            continue
        paths = [mutate(values, draw) for _ in range(draw.choice([1, 1, 1, 2]))]
        config = attempt("values", lambda: parse_config(values), [path for path in paths if path], paths)  # noqa: B023
        if config is None:
            continue
        written = config.model_dump(mode="json")
        if draw.random() < 0.05:  # PyYAML takes its time
            written = attempt("written", lambda: yaml.safe_load(dump_config(config)), paths, paths)  # noqa: B023
        again = attempt("read again", lambda: parse_config(written), paths, paths)  # noqa: B023
        if again != config:
            wrong.append((paths, "is another config when it is written and read"))
        if draw.random() < preflight_share:
            machine = Available(cpus=2, gpus=0, where="this machine")
            known = [*paths, ("stages",), ("trackers",), ("model", "path"), ("run_dir",), ("resources",)]
            attempt("checked", lambda: check_run(config, where / "run", list(config.stages), machine), known, paths)  # noqa: B023
    return tally, wrong


def test_slips_are_refused_with_the_path_of_the_key(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tally, wrong = try_mutations(5000, seed=1, where=tmp_path, preflight_share=0.05)
    assert not wrong, wrong[:5]
    assert sum(tally.values()) >= 5000
    assert len(tally) == 10  # some of each kind, taken and refused
    assert tally["values, refused"] > tally["values, taken"] / 2


# --- every number --------------------------------------------------------------------------------


def numbers(annotation, path):
    """The types of single numbers in a type, each with the keys that lead to it."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        for name, field in annotation.model_fields.items():
            yield from numbers(field.rebuild_annotation(), f"{path}.{name}")
    elif (bare := get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation) in (int, float):
        yield annotation, path
    else:
        inner = [bare] if bare is not annotation else get_args(annotation)
        for part in inner:
            yield from numbers(part, path)


def test_every_number_is_finite_and_bounded():
    found = {path: kind for root in (RunConfig, GenerationsMap) for kind, path in numbers(root, root.__name__)}
    assert len(found) > 100
    odd = [float("inf"), float("-inf"), float("nan"), 1e30, -1e30, 10**30, -(10**30), 10**400, True, "nan", "inf"]
    for path, kind in found.items():
        adapter = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=Strict.model_config["allow_inf_nan"]))
        for value in odd:
            with pytest.raises(ValidationError):
                print(path, value, adapter.validate_python(value))


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tally, wrong = try_mutations(int(sys.argv[1]), int(sys.argv[2]), Path(folder), preflight_share=0.3)
    print(*sorted(tally.items()), *wrong[:20], f"{len(wrong)} went wrong", sep="\n")
