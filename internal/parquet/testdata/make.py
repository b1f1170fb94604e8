"""Writes the Parquet files of the tests and what is in them (pyarrow 26)."""
import json
import pyarrow as pa, pyarrow.parquet as pq

rows = [
    {"q": "What is 1+1?", "choices": {"text": ["one", "two"], "label": ["A", "B"]}, "key": "B", "n": 1, "f": 0.5, "ok": True, "nest": [[1], [], [2, 3]], "objs": [{"a": 1, "b": "x"}]},
    {"q": "Née?", "choices": {"text": [], "label": []}, "key": None, "n": -2**40, "f": -1.25, "ok": False, "nest": None, "objs": []},
    {"q": "", "choices": None, "key": "A", "n": None, "f": None, "ok": None, "nest": [None, [None, 4]], "objs": [{"a": None, "b": None}, None, {"a": 2, "b": "y"}]},
] * 5
table = pa.Table.from_pylist(rows)
json.dump(rows, open("rows.json", "w"), ensure_ascii=False)
for name, kw in {
    "snappy": {}, "plain": {"compression": "none", "use_dictionary": False}, "zstd": {"compression": "zstd", "data_page_version": "2.0"},
    "gzip": {"compression": "gzip", "row_group_size": 4}, "delta": {"use_dictionary": False, "column_encoding": {"n": "DELTA_BINARY_PACKED"}},
}.items():
    pq.write_table(table, name + ".parquet", **kw)

pq.write_table(pa.table({"q": pa.array([], pa.string()), "n": pa.array([], pa.int64())}), "norows.parquet")
