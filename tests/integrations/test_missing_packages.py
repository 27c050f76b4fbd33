"""What a user of the integrations sees without their packages."""

import importlib
import sys

import pytest


@pytest.mark.parametrize(
    ("name", "package"),
    [("lightning", "lightning.pytorch"), ("transformers", "transformers"), ("accelerate", "accelerate")],
)
def test_the_error_without_the_package_names_the_extra(name, package, monkeypatch):
    monkeypatch.delitem(sys.modules, f"barebones.integrations.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'barebones\[{name}\]'"):
        importlib.import_module(f"barebones.integrations.{name}")
