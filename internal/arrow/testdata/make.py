"""Writes the Arrow files of the tests and what is in them (pyarrow 26, datasets 5.2)."""
import datetime
import decimal
import json
import pathlib
import shutil

import datasets
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

rows = [
    {"q": "What is 1+1?", "choices": {"text": ["one", "two"], "label": ["A", "B"]}, "key": "B", "n": 1, "f": 0.5, "ok": True, "nest": [[1], [], [2, 3]], "objs": [{"a": 1, "b": "x"}], "none": None,
     "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello, and more than twelve bytes."}]},
    {"q": "Née?", "choices": {"text": [], "label": []}, "key": None, "n": -2**40, "f": -1.25, "ok": False, "nest": None, "objs": [], "none": None, "messages": []},
    {"q": "", "choices": None, "key": "A", "n": None, "f": None, "ok": None, "nest": [None, [None, 4]], "objs": [{"a": None, "b": None}, None, {"a": 2, "b": "y"}], "none": None, "messages": None},
] * 5
table = pa.Table.from_pylist(rows)
json.dump(rows, open("rows.json", "w"), ensure_ascii=False)
pa.parquet.write_table(table, "rows.parquet")


def stream(name, table, rows_of_batch=8, **options):
    with pa.OSFile(name + ".arrow", "wb") as f, pa.ipc.new_stream(f, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as w:
        w.write_table(table, max_chunksize=rows_of_batch)


# The same table in other types: those of texts, lists and numbers, dictionaries in columns and in lists.
texts = pa.dictionary(pa.int8(), pa.string())
other = pa.schema([
    ("q", pa.string_view()), ("choices", pa.struct([("text", pa.large_list(pa.large_string())), ("label", pa.list_(texts))])), ("key", texts), ("n", pa.int64()), ("f", pa.float32()), ("ok", pa.bool_()),
    ("nest", pa.large_list(pa.list_(pa.int8()))), ("objs", pa.list_(pa.struct([("a", pa.uint16()), ("b", pa.large_string())]))), ("none", pa.null()),
    ("messages", pa.list_(pa.struct([("role", texts), ("content", pa.string_view())]))),
])
stream("stream", table)
stream("types", pa.Table.from_pylist(rows, schema=other))
stream("lz4", table, 15, compression="lz4")
stream("zstd", table, 15, compression="zstd")
with pa.OSFile("file.arrow", "wb") as f, pa.ipc.new_file(f, other) as w:
    w.write_table(pa.Table.from_pylist(rows, schema=other), max_chunksize=1000)
pa.feather.write_feather(table, "lz4.feather", compression="lz4")
stream("norows", table.slice(0, 0))

# Dictionaries that grow from batch to batch.
with pa.OSFile("delta.arrow", "wb") as f, pa.ipc.new_stream(f, pa.schema([("key", texts)]), options=pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)) as w:
    for n in range(1, 4):
        w.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(pa.array([n - 1, 0, None], pa.int8()), pa.array(["a", "b", "c"][:n]))], names=["key"]))

# Dates, times, binaries and small and large numbers, in Parquet beside Arrow.
moment = datetime.datetime(2024, 2, 29, 12, 30, 15)
wide = pa.table({
    "s": pa.array([moment, None], pa.timestamp("s")), "us": pa.array([moment, None], pa.timestamp("us", "UTC")), "day": pa.array([moment.date(), None], pa.date32()), "ms": pa.array([moment, None], pa.date64()),
    "time": pa.array([moment.time(), None], pa.time32("s")), "time64": pa.array([moment.time(), None], pa.time64("us")), "took": pa.array([5, None], pa.duration("s")),
    "bytes": pa.array([b"a\xffb", None], pa.binary()), "fixed": pa.array([b"abc", None], pa.binary(3)), "pair": pa.array([[1, 2], None], pa.list_(pa.int32(), 2)),
    **{str(t): pa.array([100, None], t) for t in (pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64())},
})
stream("wide", wide)
pa.parquet.write_table(wide, "wide.parquet")

# What is refused.
for name, column in {
    "decimal": pa.array([decimal.Decimal("1.50")]), "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "large": pa.array([2**63], pa.uint64()),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "runs": pa.RunEndEncodedArray.from_arrays([1], ["a"]),
}.items():
    stream(name, pa.table({"text": ["a"], name: column}))
pa.feather.write_feather(pa.table({"text": ["a"]}), "v1.feather", version=1)

# Texts in Latin-1 that are declared to be UTF-8, in the third batch or row group: plain, in a dictionary, and in a list of structs.
latin = pa.array([b"one", None, b"three", b"four", b"caf\xe9"], pa.binary()).view(pa.string())
places = pa.array([0, None, 1, 2, 3], pa.int8())
for name, column in {
    "latin": latin, "latindict": pa.DictionaryArray.from_arrays(places, latin.drop_null()),
    "latinlist": pa.ListArray.from_arrays([0, 2, 2, 4, 4, 5], pa.StructArray.from_arrays([latin], ["content"])),
}.items():
    table = pa.table({"n": [1, 2, 3, 4, 5], "text": column})
    stream(name, table, 2)
    pa.parquet.write_table(table, name + ".parquet", row_group_size=2)

# Folders of the datasets library: a data set of two files, splits, and one that shows its rows in another order.
data = datasets.Dataset.from_list([{"text": f"Text {i}."} for i in range(5)])
for name in ("saved", "splits", "shuffled"):
    shutil.rmtree(name, ignore_errors=True)
data.save_to_disk("saved", num_shards=2)
datasets.DatasetDict({"train": data.select([0, 1]), "test": data.select([2])}).save_to_disk("splits")
data.select([3, 0, 2]).filter(lambda row: row["text"] != "Text 0.").save_to_disk("shuffled")
# Each of its runs would name the same data otherwise.
for state in pathlib.Path().glob("s*/**/state.json"):
    of = json.loads(state.read_text())
    of["_fingerprint"] = "0123456789abcdef"
    state.write_text(json.dumps(of, indent=2))
