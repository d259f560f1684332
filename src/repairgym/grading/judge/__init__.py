"""An optional second gate: a language model reviews what the tests let pass (paper A)."""
