import pytest

from repairgym.sandbox.guest import reaping


def test_signals_never_reach_the_host():
    with pytest.raises(RuntimeError, match="processes of the host"):
        reaping.signal_namespace(0)
