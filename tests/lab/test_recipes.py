"""Recipes: grids, functions and files of experiments, and one sentence for whatever is wrong with them."""

import json
import sys
from pathlib import Path

import pytest

from barebones.lab.experiment import recipes
from barebones.lab.experiment.experiment import Experiment

TOML = """
data = "digits"
seed = [0, 1]
[[grid]]
method = ["snip", "force"]
sparsity = [0.9, 0.99]
[[grid]]
method = "dense"
seed = 7
"""


def test_a_file_may_hold_several_grids(tmp_path):
    (tmp_path / "one.toml").write_text(TOML)
    experiments = recipes.experiments(str(tmp_path / "one.toml"))
    assert len(experiments) == 2 * 2 * 2 + 1
    assert (experiments[-1].method, experiments[-1].seed, experiments[-1].data) == ("dense", 7, "digits")
    (tmp_path / "two.json").write_text(json.dumps({"method": ["snip", "force"], "epochs": 3}))
    expected = [Experiment(method=method, epochs=3) for method in ("snip", "force")]
    assert recipes.experiments(str(tmp_path / "two.json")) == expected


def test_a_grid_of_several_methods_leaves_out_what_one_of_them_does_not_take():
    grid = {"method": ["dense", "snip", "force"], "rounds": [5, 10], "sparsity": [0.9, 0.95]}
    listed = [(e.method, e.rounds, e.sparsity) for e in recipes.crossed(grid) if e.resolved()]
    forces = [("force", rounds, sparsity) for rounds in (5, 10) for sparsity in (0.9, 0.95)]
    assert listed == [("dense", None, Experiment.sparsity), ("snip", None, 0.9), ("snip", None, 0.95), *forces]
    grid = {"method": ["dense", "random", "snip", "force"]}
    grid |= {"revive_empty": [True, False], "scoring_bn": ["batch", "eval"]}
    listed = [(e.method, e.revive_empty, e.scoring_bn) for e in recipes.crossed(grid) if e.resolved()]
    snips = [("snip", True, "batch"), ("snip", True, "eval")]
    forces = [("force", revive, bn) for revive in (True, False) for bn in ("batch", "eval")]
    assert listed == [("dense", True, "batch"), ("random", True, "batch"), *snips, *forces]
    revived = recipes.crossed({"method": ["iter-snip", "snip"], "revive_until": 0.5, "revive_empty": False})
    assert [(e.method, e.resolved().pruning().revive_empty) for e in revived] == [("iter-snip", False), ("snip", False)]


def test_a_grid_may_take_the_recommended_settings():
    grid = {"sparsity": [0.99, 0.995], "lr_schedule": "milestones"}
    moved = Experiment(method="hybrid", sparsity=0.995, evolve="set", shrink=True, lr_schedule="milestones")
    assert list(recipes.crossed(grid | {"recommended": True}))[1] == moved
    assert list(recipes.crossed(grid | {"recommended": False})) == list(recipes.crossed(grid))
    for wrong in ({"recommended": "yes"}, {"recommended": [True, False]}, {"mask": "0" * 64}):
        with pytest.raises(ValueError, match="change it in the recipe"):
            list(recipes.crossed(grid | wrong))


RECIPE = """
from barebones.lab.experiment.experiment import Experiment

good = lambda: [Experiment(seed=3)]
empty = lambda: []
other = lambda: [3]
nothing = lambda: None
bad = lambda: [Experiment(sparsity=99)]
needs = lambda more: []
"""


def test_a_recipe_may_be_a_function(tmp_path, monkeypatch):
    path = tmp_path / "mine.py"
    path.write_text(RECIPE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert recipes.experiments(f"{path}:good") == [Experiment(seed=3)]
    assert str(tmp_path) in sys.path  # a model may stand beside it
    assert recipes.experiments("mine:good") == [Experiment(seed=3)]
    wrong = {"empty": "is empty", "other": "returned int", "nothing": "failed .TypeError"}
    wrong |= {"bad": "did you mean 0.99", "needs": "failed .TypeError", "god": "did you mean 'good'"}
    for name, words in wrong.items():
        with pytest.raises(ValueError, match=words):
            recipes.experiments(f"{path}:{name}")


@pytest.mark.parametrize(
    ("recipe", "content", "words"),
    [
        ("smok", None, "did you mean 'smoke'"), ("none.toml", None, "cannot be read"),
        ("none.py", None, "name a file.py:function"), ("none.py:go", None, "there is no file none.py for the recipe"),
        ("no.such.module:go", None, "No module named 'no'"), ("a.toml", "seed = ", "not valid TOML"),
        ("a.json", "{", "not valid JSON"), ("a.json", "[1]", "no fields of an experiment"),
        ("a.toml", "sead = 1", "did you mean 'seed'"), ("a.toml", "seed = []", "seed is an empty list"),
        ("a.toml", "seed = 'one'", "not a whole number"), ("a.toml", "grid = 3", "not a list of tables"),
        ("a.toml", "grid = []", "is empty"),
        ("a.json", '{"seed": ' + 10**5 * "[", "not valid JSON"),
        ("a.toml", "".join(f"{n} = {[*range(1, 99)]}\n" for n in ("seed", "rounds", "epochs")), "941,192 combinations"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_recipe_is_said(tmp_path, monkeypatch, recipe, content, words):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path(recipe).write_text(content)
    with pytest.raises(ValueError, match=words):
        recipes.experiments(recipe)


@pytest.mark.parametrize(("name", "runs"), [("smoke", 10), ("cifar10", 258), ("early-pruning", 36)])
def test_the_built_in_recipes(name, runs):
    experiments = {experiment.resolved("cuda") for experiment in recipes.experiments(name)}
    assert len(experiments) == runs
    doc = recipes.RECIPES[name].__doc__ or ""
    assert f"barebones sweep {name}" in doc
    assert f"{runs} runs" in doc
    if name == "early-pruning":
        assert {(experiment.pretrain, experiment.method) for experiment in experiments} == {(1, "magnitude")}
