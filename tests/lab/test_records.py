"""Records: a row for each run folder whatever is in it, right means and deviations, and the same table in two files.

No cell of a CSV file is a formula to a spreadsheet or breaks its line.
"""

import csv
import gzip
import importlib
import importlib.util
import io
import json
from pathlib import Path

import pytest
from lab_runs import made_up_result as result
from lab_runs import write_file

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import records, tables
from barebones.lab.run.folder import FAILURE
from barebones.messages import plain_text

SMALL = Experiment("small-vgg", "digits", "snip", 0.9, epochs=1).resolved()


def written(runs: Path, experiment: Experiment, content: dict | str | None = None, name: str = "result.json") -> Path:
    path = runs / experiment.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, str):
        path.write_text(content)
    else:
        write_file(path.parent, experiment, name, content or result(experiment))
    return path.parent


def seeded(seed: int, **changes) -> Experiment:
    return Experiment.from_dict(SMALL.to_dict() | {"seed": seed} | changes)


def test_a_row_holds_what_was_run_and_what_came_of_it(tmp_path):
    written(tmp_path, SMALL, result(SMALL, collapsed=["conv2", "fc"], made={"commit": "12e4"}))
    (row,) = records.records(tmp_path)
    assert list(row) == list(records.COLUMNS)
    assert {name: row[name] for name in records.SETTINGS} == SMALL.to_dict()
    numbers = {"top1": 0.9, "top5": None, "kept": 100, "effective": 50, "effective_sparsity": 0.95, "flops_left": 0.15}
    numbers |= {"best_validation_epoch": 12, "best_validation": 0.92, "top1_at_best_validation": 0.89}
    numbers |= {"empty_layers": 0, "disconnected_outputs": 0, "seeds": 1, "top1_mean": 0.9, "top1_std": None}
    numbers |= {"prune_seconds": 1.5, "train_seconds": 20.0, "epochs_trained": 1, "flops_shrunk": None}
    texts = {"status": "done", "reason": None, "folder": SMALL.folder, "commit": "12e4"}
    texts |= {"collapsed": True, "collapsed_layers": "conv2 fc"}
    unknown = dict.fromkeys(("torch", "device", "compiled", "finished", "command"))
    assert {name: value for name, value in row.items() if name not in records.SETTINGS} == numbers | texts | unknown


def test_unfinished_runs_are_no_rows_and_a_result_outweighs_an_old_failure(tmp_path):
    written(tmp_path, seeded(0), seeded(0).to_dict(), "experiment.json")
    written(tmp_path, seeded(1))
    written(tmp_path, seeded(1), {"experiment": seeded(1).to_dict(), "reason": "no luck"}, "failure.json")
    written(tmp_path, seeded(2), {"experiment": seeded(2).to_dict(), "reason": "no luck"}, "failure.json")
    (tmp_path / "notes.txt").write_text("not a folder")
    rows = records.records(tmp_path)
    states = [(row["seed"], row["status"], row["reason"]) for row in rows]
    assert states == [(1, "done", None), (2, "failed", "no luck")]
    assert [row["seeds"] for row in rows] == [1, 1]  # those that are done


@pytest.mark.parametrize(
    "content", ["", "[]", "[" * 100_000, '{"test": {"top1": 1}}', json.dumps(result(SMALL))], ids=range(5)
)
def test_garbage_spoils_one_row_alone(tmp_path, content):
    written(tmp_path, seeded(1))
    folder = written(tmp_path, SMALL, content or " ")
    good, bad = sorted(records.records(tmp_path), key=lambda row: row["status"])
    assert (good["status"], good["seeds"]) == ("done", 1)
    assert (bad["status"], bad["folder"], bad["method"]) == ("unreadable", SMALL.folder, None)
    assert bad["reason"].startswith("result.json is damaged")
    write_file(folder, SMALL, "experiment.json", SMALL.to_dict())
    rows = records.records(tmp_path)
    assert sorted((row["method"], row["status"]) for row in rows) == [("snip", "done"), ("snip", "unreadable")]
    records.write(rows, tmp_path)


def table(tmp_path: Path) -> list[dict]:
    written(tmp_path, seeded(0), result(seeded(0), 0.5, best_validation=None))
    written(tmp_path, seeded(1), result(seeded(1), 0.7))
    failure = {"experiment": seeded(2).to_dict(), "reason": 'it said "no", twice\nand left'}
    written(tmp_path, seeded(2), failure, "failure.json")
    return records.records(tmp_path)


def test_a_table_without_its_run_folders_has_the_same_rows(tmp_path):
    rows = table(tmp_path / "runs")
    rows[0] |= {"commit": "12e4", "compiled": False, "collapsed": True}  # a text that looks like a number
    records.write(rows, tmp_path)
    assert (tmp_path / "records.csv").read_text().splitlines()[0] == ",".join(records.COLUMNS)
    assert records.records(tmp_path) == rows
    (path := tmp_path / "records.csv").write_text(path.read_text().replace(",scoring_bn,", ",x,"))
    assert [row["scoring_bn"] for row in records.records(tmp_path)] == ["batch"] * 3  # a later field has its default
    path.write_text("model,data\nvgg19,cifar10\n")
    with pytest.raises(ValueError, match="it has no column method"):
        records.records(tmp_path)
    with pytest.raises(ValueError, match=r"there is no folder .*name the one"):
        records.records(tmp_path / "nothing")


def test_without_pyarrow_there_is_the_csv_alone(tmp_path, monkeypatch):
    def absent(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    assert records.write(table(tmp_path), tmp_path) == [tmp_path / "records.csv"]
    assert not (tmp_path / "records.parquet").exists()


@pytest.mark.skipif(not importlib.util.find_spec("pyarrow"), reason="needs pyarrow")
def test_the_parquet_file_is_the_same_table_with_types(tmp_path):
    parquet = importlib.import_module("pyarrow.parquet")
    rows = table(tmp_path)
    assert records.write(rows, tmp_path) == [tmp_path / "records.csv", tmp_path / "records.parquet"]
    read = parquet.read_table(tmp_path / "records.parquet")
    assert read.to_pylist() == rows
    assert read.column_names == list(records.COLUMNS)
    kinds = {name: str(kind) for name, kind in zip(read.column_names, read.schema.types, strict=True)}
    assert (kinds["seed"], kinds["top1"], kinds["collapsed"], kinds["model"]) == ("int64", "double", "bool", "string")
    assert str(parquet.read_schema(records.write([], tmp_path)[1]).field("seed").type) == "int64"  # of no rows too


def shown(rows: list[dict]) -> list[str]:
    lines = plain_text(records.summary(rows)).splitlines()
    return [" ".join(line.split()) for line in lines if line.startswith("│")]


def test_the_summary_has_a_line_for_each_group(tmp_path):
    written(tmp_path, seeded(0, method="random", control="shuffle"))
    assert shown(table(tmp_path)) == [
        "│ random, shuffled │ 90 │ 90.00 │ 1 │ │",
        "│ snip │ 90 │ 60.00 ± 14.14 │ 2 │ 1 │",
    ]
    written(tmp_path, seeded(0, method="random", data="cifar10", model="vgg19"))
    assert shown(table(tmp_path))[0] == "│ cifar10 │ vgg19 │ random │ 90 │ 90.00 │ 1 │ │"
    written(tmp_path, seeded(0, epochs=5))
    lines = shown(table(tmp_path))
    assert [line.split("│")[-3].strip() for line in lines if "snip" in line] == ["epochs 1", "epochs 5"]


def test_no_name_in_the_summary_controls_the_terminal(tmp_path):
    row = dict.fromkeys(records.COLUMNS) | Experiment(model="a\x1b[2J[/]:b\r").resolved().to_dict() | {"status": "done"}
    printed = plain_text(records.summary(records.with_statistics([row | {"folder": "x", "top1": 0.5}])))
    assert r"a\x1b[2J[/]:b\r" in printed


def test_a_number_that_is_too_large_makes_a_run_unreadable(tmp_path, monkeypatch):
    monkeypatch.setattr("barebones.lab.records.records.finished", lambda *_: {})
    monkeypatch.setattr("barebones.lab.records.records._result", lambda _: {"top1": 10**400})
    row = records.record(tmp_path)
    assert row["status"] == "unreadable"
    assert "too large" in row["reason"]


FORMULAS = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "=cmd|' /C calc'!A0", "-x", "＝1+1", " =1", "'=1", "''@x", "=", "-"]
FORMULAS += ["\tx", "\rx", "\nx", "\r=1", "\t=1", '="a,b"', "\u2028=1"]
NAMES = ["a\rb", "a\nb", "a\r\nb", "b\r", 'a "b", c', '"', "\x1b[2J", "1;=1", "'", "'a"]


def cells(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_bytes().decode(), newline="")))


@pytest.mark.parametrize("text", [*FORMULAS, *NAMES])
def test_any_text_comes_back_and_a_formula_is_written_as_text(text: str, tmp_path: Path) -> None:
    rows = [{"model": text, text: 0.5, "last": "x"}] * 2
    tables.write(rows, tmp_path / "table.csv")
    written = f"'{text}" if text in FORMULAS else text
    assert cells(tmp_path / "table.csv") == [["model", written, "last"], *[[written, "0.5", "x"]] * 2]
    assert tables.read(tmp_path / "table.csv") == rows


@pytest.mark.parametrize("value", [-1, -0.5, 1e-7, -1e300, float("-inf"), True, None, 0, "-1", "+2.5", "-1e5"])
def test_numbers_stay_numbers(value: object, tmp_path: Path) -> None:
    tables.write([{"x": value, "last": "x"}], tmp_path / "table.csv")
    assert cells(tmp_path / "table.csv")[1][0] == ("" if value is None else str(value))
    assert tables.read(tmp_path / "table.csv")[0]["x"] == (float(value) if isinstance(value, str) else value)


def test_a_packed_table_is_read_and_a_damaged_one_refused(tmp_path: Path) -> None:
    rows, packed = [{"model": "resnet50", "kept": number} for number in range(1000)], tmp_path / "table.csv.gz"
    tables.write(rows, tmp_path / "table.csv")
    whole = gzip.compress((tmp_path / "table.csv").read_bytes())
    packed.write_bytes(whole)
    assert tables.read(packed) == rows
    for damaged in (whole[:-20], whole[:8], b"model,kept\n", whole[:40] + b"\0" * 20 + whole[60:]):
        packed.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a CSV file that barebones figure wrote"):
            tables.read(packed)


def test_the_records_of_a_stranger_are_no_formulas(tmp_path: Path) -> None:
    texts = [*FORMULAS, *NAMES, "\ud800"]
    for number, text in enumerate(texts):
        failure = {"experiment": {"model": text}, "reason": text}
        write_file(tmp_path / f"=run{number}", Experiment(text), FAILURE, failure)
    records.write(records.records(tmp_path), tmp_path)
    head, *body = cells(tmp_path / records.CSV)
    assert [row[head.index("status")] for row in body] == ["failed"] * len(texts)
    for row in body:
        assert len(row) == len(head)
        assert not any(tables.FORMULA.match(cell) for cell in row)
