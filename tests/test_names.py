"""The names that help and completion show are those of the tables, in their order."""

import pytest

from barebones import METHODS, names
from barebones.data import DATA
from barebones.lab.figures.accuracy import AXES
from barebones.lab.run.tracking import TRACKERS
from barebones.models import MODELS, NORM_SCALES, SCHEMES
from barebones.pruning.densities import LAWS
from barebones.pruning.gradients import LOSSES

TABLES = {
    "AXES": AXES, "DATA": DATA, "LAWS": LAWS, "LOSSES": LOSSES, "METHODS": METHODS, "MODELS": MODELS,
    "NORM_SCALES": NORM_SCALES, "SCHEMES": SCHEMES, "TRACKERS": TRACKERS,
}  # fmt: skip
KEYS = {name: tuple(table) for name, table in TABLES.items()}  # now, before other tests register methods


@pytest.mark.parametrize("name", TABLES)
def test_the_names_are_the_keys_of_their_table(name):
    assert getattr(names, name) == KEYS[name]
