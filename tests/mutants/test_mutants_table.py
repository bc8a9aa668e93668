"""The table of ``make mutants`` still says what is there: texts exactly once, tests by their names."""

from mutate import ROOT, TABLE, faults_of, read_table

MUTANTS = read_table(TABLE.read_text(encoding="utf-8"))


def test_every_text_is_there_once():
    assert len(MUTANTS) >= 150
    assert not faults_of(MUTANTS)


def test_every_test_is_there():
    missing = []
    for test in sorted({test for mutant in MUTANTS for test in mutant.tests}):
        file, _, name = test.partition("[")[0].partition("::")
        if not (ROOT / file).is_file() or (name and f"def {name}(" not in (ROOT / file).read_text(encoding="utf-8")):
            missing.append(test)
    assert not missing


def test_faults_are_told():
    given = "rl/guard.py\n\n- there is no such text\n+ x\n> tests/test_x.py\n\n- import math\n+ pass\n"
    absent, idle = faults_of(read_table(given))
    assert absent.startswith("its text is there 0 times, not once: rl/guard.py: there is no such text  ->  x")
    assert idle.startswith("needs tests, or a reason why there are none: rl/guard.py: import math  ->  pass")
    assert read_table(given)[0].tests == ("tests/test_x.py",)
