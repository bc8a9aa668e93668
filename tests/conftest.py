"""One thread a process, here and in what tests start: two that spin on shared cores are many times slower.

Besides, the fixtures that several files share.
"""

import os

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture
def no_painting(monkeypatch):
    """Charts without content, where they are not what is tested: painting is most of a report's time."""
    from fbt_rl.report import paint  # here, not above: matplotlib would slow down the start of every test run

    monkeypatch.setattr(
        paint,
        "draw",
        lambda name, caption, alt, *paints: paint.Chart(name, caption, alt, b"", "<svg>"),
    )


@pytest.fixture
def level(request, monkeypatch):
    """The sandbox level in force, for tests that are parametrised by it."""
    from reward.code import sandbox

    monkeypatch.setattr(sandbox, "level_in_force", lambda: request.param)
    return request.param
