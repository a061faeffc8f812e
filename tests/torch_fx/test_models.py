"""The families' parameters are drawn: a norm of ones or a bias of zeros would hide what is done to it wrongly."""

from __future__ import annotations

import pytest

from tests.torch_fx.models import FAMILIES, module


@pytest.mark.parametrize("name", FAMILIES)
def test_parameters_have_both_signs(name: str) -> None:
    for key, parameter in module(name).named_parameters():
        assert bool((parameter < 0).any() and (parameter > 0).any()), key
