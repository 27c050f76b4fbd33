"""Sources of masks, alone and in several processes; and what a user sees without the packages."""

import importlib
import subprocess
import sys

import pytest
import torch
from references import equal
from torch import nn

RANK = """
import sys, torch
from torch import nn
from barebones.integrations.source import masks_for
rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(rank)
masks = masks_for(nn.Linear(40, 3), lambda model: {"weight": model.weight > 0})
torch.save(dict(masks), f"{sys.argv[2]}.{rank}")
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_all_processes_take_the_masks_of_the_first(tmp_path):
    words = [[sys.executable, "-c", RANK, str(rank), str(tmp_path / "meeting")] for rank in range(2)]
    processes = [subprocess.Popen(each, stderr=subprocess.PIPE, text=True) for each in words]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    torch.manual_seed(0)
    expected = {"weight": nn.Linear(40, 3).weight > 0}
    for rank in range(2):
        assert equal(torch.load(tmp_path / f"meeting.{rank}"), expected)


@pytest.mark.parametrize(
    ("name", "package"),
    [("lightning", "lightning.pytorch"), ("transformers", "transformers"), ("accelerate", "accelerate")],
)
def test_the_error_without_the_package_names_the_extra(name, package, monkeypatch):
    monkeypatch.delitem(sys.modules, f"barebones.integrations.{name}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"pip install 'barebones\[{name}\]'"):
        importlib.import_module(f"barebones.integrations.{name}")
