"""Where a model lies: what leads nowhere is named, whatever the system says of it."""

from __future__ import annotations

import pytest

from swarmd.config import TrainingConfig
from swarmd.errors import ModelError
from swarmd.training.models.memory import ModelShape
from swarmd.training.models.pool import list_pool
from swarmd.training.models.source import locate_model

UNKNOWN = "~nobody-whom-this-machine-knows/model"
TOO_LONG = f"/{'m' * 300}"  # the system refuses to look there, as it does where this user may not read


@pytest.mark.parametrize("name", [UNKNOWN, TOO_LONG], ids=["unknown user", "not to be looked into"])
def test_a_path_that_cannot_be_followed_is_named(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        locate_model(name)
    assert name in caught.value.message and caught.value.fix


@pytest.mark.parametrize("name", [UNKNOWN, TOO_LONG], ids=["unknown user", "not to be looked into"])
def test_so_it_is_in_a_pool(name: str) -> None:
    def inspect(directory: str) -> ModelShape:
        raise AssertionError(f"{directory} is no model")

    with pytest.raises(ModelError, match=r"training\.pool") as caught:
        list_pool(TrainingConfig(pool=(name,)), inspect)
    assert name in caught.value.message
