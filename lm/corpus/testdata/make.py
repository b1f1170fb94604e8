"""Writes the Parquet file of the tests (pyarrow 26)."""
import pyarrow as pa, pyarrow.parquet as pq

table = pa.table({"text": ["First record.", "", "Second, with \"quotes\" and ümlauts."]})
pq.write_table(table, "text.parquet", row_group_size=2, compression="snappy")
