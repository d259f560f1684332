from __future__ import annotations

import pytest

from repairgym.inference.renderer import ChatRenderer
from repairgym.inference.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def renderer() -> ChatRenderer:
    return ChatRenderer(train_tokenizer(["user assistant edit test undo submit"] * 9, 400, 40))
