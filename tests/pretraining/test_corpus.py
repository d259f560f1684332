"""Nothing of the held-out packages is in the shipped base."""

import pytest

from repairgym.inference.loading import shipped_base
from repairgym.pretraining.held_out import held_out_digests
from repairgym.pretraining.pretraining import DIGEST_CHARS, seen_functions
from repairgym.tasks.layers.store import LayerStore


def test_the_manifest_of_functions_can_be_read():
    seen = seen_functions(shipped_base())
    assert len(seen) > 50_000
    assert all(len(digest) == DIGEST_CHARS for digest in seen)


@pytest.mark.network
def test_no_function_of_a_held_out_package_was_trained_on():
    held_out = {digest[:DIGEST_CHARS] for digest in held_out_digests(LayerStore())}
    assert len(held_out) > 3000
    assert not held_out & seen_functions(shipped_base())
