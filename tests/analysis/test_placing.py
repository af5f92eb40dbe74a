"""Every representation leads back to where x' is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stec.actions import EfferenceCopy, Glimpse, egocentric, representation
from stec.analysis.placing import place
from stec.views import Views


def random_copy(seed: int) -> EfferenceCopy:
    """Crops as training draws them in images of any shape, in float64."""
    torch.manual_seed(seed)
    sizes = torch.randint(40, 200, (16, 2)).float()
    views = Views(area=(0.2, 1.0))
    doubles = [[v.double() if v.is_floating_point() else v for v in views.sample(sizes)] for _ in range(2)]
    return EfferenceCopy(*(Glimpse(*values) for values in doubles))


@pytest.mark.parametrize(
    "name", ["egocentric", "paper", "official", "allocentric", "colour+paper", "allocentric+colour"]
)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_place_of_the_true_action_is_where_the_second_view_lies(name, seed):
    copy = random_copy(seed)
    placed = place(name, representation(name)(copy), copy.first)
    torch.testing.assert_close(placed, egocentric(copy), rtol=0, atol=1e-9)


def test_a_colour_has_no_place():
    copy = random_copy(0)
    assert place("colour", representation("colour")(copy), copy.first) is None


def test_an_inferred_mirror_counts_from_a_half_on():
    copy = random_copy(0)
    action = representation("allocentric")(copy)
    first, other = copy.first, copy.first._replace(mirrored=~copy.first.mirrored)
    for inferred, second in ((0.4, first), (0.6, other)):
        action[:, :4], action[:, 4] = 0, inferred
        placed = place("allocentric", action, first)
        torch.testing.assert_close(placed, egocentric(EfferenceCopy(first, second)), rtol=0, atol=1e-9)
