"""Add the finished runs of a folder to the records in results/: their rows, their metrics and their masks.

barebones sweep results/full.toml --device cuda --on-collapse skip
python benchmarks/gather.py runs
"""

import json
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from barebones.lab.records.records import COLUMNS, CSV, DONE, arranged, records
from barebones.lab.records.tables import write

RESULTS = Path(__file__).parents[1] / "results"
LARGEST = 1_000_000  # bytes of a file in git
REPEATED = ["run", "epoch", "lr", "accuracy", "validation_top1", "test_top1"]  # columns whose values occur again


def round_of(run: str, line: dict) -> dict:
    layers = list(line["layers"].values()) if line["round"] == line["rounds"] else None
    names = ("round", "keep", "pruned", "recovered", "recovered_empty", "saliency", "loss")
    return {"run": run, **{name: line[name] for name in names}, "layers": layers}


def epoch_of(run: str, line: dict) -> dict:
    measured = {part: line[part] or {} for part in ("validation", "test")}
    tests = {f"{part}_{name}": found.get(name) for part, found in measured.items() for name in ("top1", "loss")}
    return {"run": run, **{name: line[name] for name in ("epoch", "lr", "loss", "accuracy")}, **tests}


def add(table: Path, rows: list[dict]) -> None:
    """Add rows to a Parquet file, in place of those of the same runs."""
    runs, old = {row["run"] for row in rows}, pq.read_table(table)
    merged = [row for row in old.to_pylist() if row["run"] not in runs] + rows
    small: dict = {"compression": "zstd", "compression_level": 19, "use_byte_stream_split": True}
    pq.write_table(pa.Table.from_pylist(merged, schema=old.schema), table, use_dictionary=REPEATED, **small)
    assert table.stat().st_size < LARGEST, f"{table} is too large for git"


def main(runs: Path) -> None:
    new = [row for row in records(runs) if row["status"] == DONE]
    names = {row["folder"] for row in new}
    rows = [row for row in records(RESULTS) if row["folder"] not in names] + new
    write(arranged(rows), RESULTS / CSV, COLUMNS)
    texts = {name: (runs / name / "metrics.jsonl").read_text().splitlines() for name in sorted(names)}
    lines = [(name, json.loads(text)) for name, found in texts.items() for text in found]
    add(RESULTS / "rounds.parquet", [round_of(*line) for line in lines if line[1].get("stage") == "prune"])
    add(RESULTS / "epochs.parquet", [epoch_of(*line) for line in lines if line[1].get("stage") == "train"])
    for name in sorted(names):
        if (mask := runs / name / "mask.safetensors").stat().st_size < LARGEST // 10:
            shutil.copyfile(mask, RESULTS / "masks" / f"{name}.safetensors")
    print(f"{len(new)} runs added, {len(rows)} in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
