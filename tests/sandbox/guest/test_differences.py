import pytest

from repairgym.sandbox.guest import differences


def test_changes_are_bounded(tmp_path):
    for name in ("before", "now"):
        (tmp_path / name).mkdir()
    (tmp_path / "now" / "large").write_bytes(b"x" * 100)
    assert differences.find_changes(str(tmp_path / "before"), str(tmp_path / "now"), (), 100) == {"large": b"x" * 100}
    with pytest.raises(differences.TooLargeError):
        differences.find_changes(str(tmp_path / "before"), str(tmp_path / "now"), (), 99)
