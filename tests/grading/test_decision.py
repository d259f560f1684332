"""The differential run: the repair is taken back, everything else stays."""

from pathlib import Path

from repairgym.grading.decision import differential_sources
from repairgym.grading.stages import Permitted, Pinned, Submission

BROKEN = "X = 1\n\n\ndef f(a, b):\n    return a < b\n\n\ndef g():\n    return 1\n"
GOLD = BROKEN.replace("a < b", "a <= b")


def task_of(task):
    return task.model_copy(update={"base_files": {"m.py": BROKEN}, "gold_files": {"m.py": GOLD}})


def broken_again(task, files, base=BROKEN):
    task = task_of(task)
    permitted = Permitted(Submission(task, files), files, ())
    return differential_sources(Pinned(permitted, Path("/tree"), {}, {"m.py": base}, {}))


def test_only_the_repair_is_taken_back(task):
    submitted = "import os\n" + GOLD.replace("return 1", "return 2").replace("a <= b", "not a > b")
    got = broken_again(task, {"m.py": submitted, "n.py": "y = 1\n"})
    assert got == {"m.py": "import os\n" + BROKEN.replace("return 1", "return 2"), "n.py": "y = 1\n"}


def test_an_untouched_file_stays_and_a_broken_one_becomes_the_base(task):
    assert broken_again(task, {"m.py": BROKEN}) == {"m.py": BROKEN}
    assert broken_again(task, {"m.py": "def f(:\n"}) == {"m.py": BROKEN}
    assert broken_again(task, {"m.py": "f = print\n"}) == {"m.py": BROKEN}
    assert broken_again(task, {"m.py": None}) == {"m.py": BROKEN}
