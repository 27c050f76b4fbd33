"""Tables: what is written comes back, and no cell is a formula to a spreadsheet or breaks its line."""

import csv
import gzip
import io
from pathlib import Path

import pytest
from lab_runs import write_file

from barebones.lab.experiment.experiment import Experiment
from barebones.lab.records import records, tables
from barebones.lab.run.folder import FAILURE

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
