from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from repairgym.analysis.candidates import (
    agreement,
    candidate,
    fit_logistic,
    fit_outcome_scorer,
    patch_digest,
)
from repairgym.errors import InputError
from repairgym.records import StopReason, VerdictKind

EDIT = ("edit", "@1 a => b", "@1 b", "")
PASSED, FAILED = ("test", "", "passed 2", ""), ("test", "", "failed 1 of 2: no", "")


def test_agreement_counts_equal_patches_and_not_empty_ones(make):
    group = [make("a", True, patch_digest="x"), make("b", True, patch_digest="x"), make("c", False, patch_digest="")]
    assert [agreement(one, group) for one in group] == [0.5, 0.5, 0.0]


def test_patches_are_equal_whatever_their_white_space_and_comments():
    base = "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
    assert patch_digest(base) == patch_digest(base.replace("@@ -1 +1 @@", "@@ -9 +9 @@").replace("+x", "+  x"))
    assert patch_digest(base) == patch_digest(base + "+# why\n")
    assert patch_digest(base) != patch_digest(base.replace("2", "3"))
    assert patch_digest("") == ""


def test_changes_in_other_languages_and_of_whole_files_count():
    private = "--- a/m.js\n+++ b/m.js\n@@ -1 +1 @@\n-#count = 1\n+#count = 2\n"
    assert patch_digest(private)
    assert patch_digest(private) != patch_digest(private.replace("2", "3"))
    assert patch_digest(private.replace(".js", ".py")) == ""
    added = "diff --git a/pkg/__init__.py b/pkg/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"
    other = added.replace("pkg", "lib")
    assert len({patch_digest(patch) for patch in ("", added, other, added + other)}) == 4
    filled = "--- /dev/null\n+++ b/pkg/__init__.py\n@@ -0,0 +1 @@\n+# new\n"
    assert patch_digest(added + filled) == patch_digest(filled) != ""


def test_log_probs_are_those_of_the_ledger(trajectory_maker):
    one = trajectory_maker()
    found = candidate(one)
    actions = one.ledger.log_prob[one.ledger.is_action]
    assert found.mean_log_prob == pytest.approx(float(actions.mean()), rel=1e-5)
    assert found.min_turn_log_prob <= found.last_turn_log_prob
    empty = candidate(trajectory_maker(steps=[], stop_reason=StopReason.INFRASTRUCTURE, kind=VerdictKind.INVALID))
    assert (empty.mean_log_prob, empty.is_passed) == (0.0, False)


def test_the_logistic_fit_is_the_minimum():
    generator = np.random.default_rng(2)
    design = np.hstack([np.ones((80, 1)), generator.normal(size=(80, 3))])
    outcomes = (generator.random(80) < 1 / (1 + np.exp(-design @ [0.3, 1.5, -1.0, 0.0]))).astype(float)

    def loss(weights):
        logits = design @ weights
        return float(np.logaddexp(0, logits).sum() - outcomes @ logits + 0.5 * (weights[1:] ** 2).sum())

    expected = optimize.minimize(loss, np.zeros(4)).x
    assert fit_logistic(design, outcomes, 1.0) == pytest.approx(expected, abs=1e-4)


def test_the_outcome_scorer_learns_what_tests_mean_and_reads_no_verdict(make):
    found = [make(f"p{i}", True, f"t{i}", test_state="passed") for i in range(30)]
    found += [make(f"f{i}", False, f"t{i}", test_state="failed") for i in range(30)]
    scorer = fit_outcome_scorer(found)
    good, bad = make("x", False, test_state="passed"), make("y", True, test_state="failed")
    assert scorer.probability(good, [good]) > 0.8 > 0.2 > scorer.probability(bad, [bad])
    with pytest.raises(InputError, match="one outcome"):
        fit_outcome_scorer(found[:30])
