"""The differential run: the repair is taken back, everything else stays."""

from repairgym.grading.differential import differential_sources

BROKEN = "X = 1\n\n\ndef f(a, b):\n    return a < b\n\n\ndef g():\n    return 1\n"
GOLD = BROKEN.replace("a < b", "a <= b")


def task_of(task):
    return task.model_copy(update={"base_files": {"m.py": BROKEN}, "gold_files": {"m.py": GOLD}})


def test_only_the_repair_is_taken_back(task):
    submitted = "import os\n" + GOLD.replace("return 1", "return 2").replace("a <= b", "not a > b")
    got = differential_sources(task_of(task), {"m.py": BROKEN}, {"m.py": submitted, "n.py": "y = 1\n"})
    assert got == {"m.py": "import os\n" + BROKEN.replace("return 1", "return 2"), "n.py": "y = 1\n"}


def test_an_untouched_file_stays_and_a_broken_one_becomes_the_base(task):
    base = {"m.py": BROKEN}
    assert differential_sources(task_of(task), base, {"m.py": BROKEN}) == {"m.py": BROKEN}
    assert differential_sources(task_of(task), base, {"m.py": "def f(:\n"}) == {"m.py": BROKEN}
    assert differential_sources(task_of(task), base, {"m.py": "f = print\n"}) == {"m.py": BROKEN}
    assert differential_sources(task_of(task), base, {"m.py": None}) == {"m.py": BROKEN}
