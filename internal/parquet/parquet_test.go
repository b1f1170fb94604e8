package parquet

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// Files of every compression and page version hold the same records.
func TestRead(t *testing.T) {
	text, err := os.ReadFile("testdata/rows.json")
	if err != nil {
		t.Fatal(err)
	}

	v, err := pyvalue.ParseJSON(text)
	if err != nil {
		t.Fatal(err)
	}

	want := v.([]any)
	for _, name := range []string{"snappy", "plain", "zstd", "gzip"} {
		rows, err := Read(filepath.Join("testdata", name+".parquet"))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}

		if len(rows) != len(want) {
			t.Errorf("%s: %d rows, want %d", name, len(rows), len(want))
			continue
		}

		for i, r := range rows {
			if got, want := pyvalue.Repr(r), pyvalue.Repr(want[i]); got != want {
				t.Errorf("%s, row %d: %s, want %s", name, i, got, want)
			}
		}
	}

	if _, err := Read("testdata/delta.parquet"); !errors.Is(err, ErrUnsupported) {
		t.Errorf("delta encoding: %v", err)
	}
}

func TestFaults(t *testing.T) {
	whole, err := os.ReadFile("testdata/snappy.parquet")
	if err != nil {
		t.Fatal(err)
	}

	for name, text := range map[string][]byte{
		"empty": nil, "no footer": make([]byte, 100), "cut": whole[:len(whole)-9],
		"encrypted": append(bytes.Clone(whole[:len(whole)-1]), 'E'),
	} {
		if _, err := read(bytes.NewReader(text), int64(len(text))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}

	for i := range whole { // a flipped byte anywhere is an error or other records, never a panic
		text := bytes.Clone(whole)
		text[i] ^= 0x55
		read(bytes.NewReader(text), int64(len(text)))
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"snappy", "plain", "zstd", "gzip", "delta"} {
		text, err := os.ReadFile(filepath.Join("testdata", name+".parquet"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		read(bytes.NewReader(text), int64(len(text)))
	})
}

// A file of columns without rows, as pyarrow writes it, has no records and no fault.
func TestNoRows(t *testing.T) {
	if rows, err := Read("testdata/norows.parquet"); err != nil || len(rows) != 0 {
		t.Errorf("%v %v", rows, err)
	}
}
