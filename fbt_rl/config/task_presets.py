"""Known problem sets: their columns, their prompts, and where the hub keeps them; see ``FileData.preset``.

A preset only fills in settings of a data section, so each of them can be set otherwise. Local files have the columns
of the original releases.
"""

from typing import Any

_REASON = "{prompt}\n\nPlease reason step by step, and put your final answer within \\boxed{}."
_CONTINUE = "Complete this Python function. Answer with the whole function in a code block.\n\n```python\n{prompt}```"
_SATISFY = "{prompt}\nAnswer with Python code in a code block. It must pass these tests:\n\n```python\n{test_list}\n```"
_ALL_SPLITS = "prompt+test+validation+train"  # of MBPP: as in the original file

TASKS: dict[str, dict[str, Any]] = {
    "gsm8k": {
        "hub": {"path": "openai/gsm8k", "name": "main"},
        "prompt": "question",
        "completion": "answer",
        "answer": "answer",
        "template": _REASON,
    },
    "math500": {
        "hub": {"path": "HuggingFaceH4/MATH-500"},
        "problem_id": "unique_id",
        "prompt": "problem",
        "completion": "solution",
        "answer": "answer",
        "level": "level",
        "subject": "subject",
        "template": _REASON,
    },
    "math": {
        "hub": {"path": "DigitalLearningGmbH/MATH-lighteval"},
        "prompt": "problem",
        "completion": "solution",
        "answer": "solution",  # whose last box it is
        "level": "level",
        "subject": "type",
        "template": _REASON,
    },
    "svamp": {
        "hub": {"path": "ChilleD/SVAMP", "split": "train+test"},  # together the 1,000 of the release
        "problem_id": "ID",
        "prompt": "{Body} {Question}",
        "answer": "Answer",
        "subject": "Type",
        "template": _REASON,
    },
    "aime": {
        "hub": {"path": "HuggingFaceH4/aime_2024", "split": "train"},
        "prompt": "problem",
        "answer": "answer",
        "template": _REASON,
    },
    "humaneval": {
        "hub": {"path": "openai/openai_humaneval"},
        "problem_id": "task_id",
        "prompt": "prompt",
        "completion": "canonical_solution",
        "tests": "test",
        "entry_point": "entry_point",
        "template": _CONTINUE,
    },
    # Tasks 11 to 510 are for testing (Austin et al. 2021).
    "mbpp": {
        "hub": {"path": "google-research-datasets/mbpp", "name": "full", "split": _ALL_SPLITS},
        "problem_id": "task_id",
        "prompt": "text",
        "completion": "code",
        "tests": "test_list",
        "setup": "test_setup_code",
        "template": _SATISFY,
        "offset": 10,
        "limit": 500,
    },
    "mbpp-sanitized": {
        "hub": {"path": "google-research-datasets/mbpp", "name": "sanitized", "split": _ALL_SPLITS},
        "problem_id": "task_id",
        "prompt": "prompt",
        "completion": "code",
        "tests": "test_list",
        "setup": "test_imports",
        "template": _SATISFY,
        "offset": 7,
        "limit": 257,
    },
}
# Shown the same tests, judged by the challenge tests as well.
TASKS["mbpp-plus"] = {**TASKS["mbpp"], "extra_tests": "challenge_test_list"}
