package arrow

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
	"github.com/modelcompress/compress/internal/parquet"
	"github.com/modelcompress/compress/internal/pyvalue"
)

// content is a file of testdata.
func content(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wantRows holds records to those that are wanted, by what Python prints of them.
func wantRows[T any](t *testing.T, name string, rows []*pyvalue.Dict, want []T) {
	t.Helper()
	if len(rows) != len(want) {
		t.Errorf("%s: %d rows, want %d", name, len(rows), len(want))
		return
	}
	for i, r := range rows {
		if got, want := pyvalue.Repr(r), pyvalue.Repr(any(want[i])); got != want {
			t.Errorf("%s, row %d:\n%s, want\n%s", name, i, got, want)
		}
	}
}

// whole are files that hold the records of rows.json: streams and files with a footer, types of every kind, packed and
// not.
var whole = []string{"stream.arrow", "types.arrow", "file.arrow", "lz4.arrow", "zstd.arrow", "lz4.feather"}

// TestRead: files of every form hold the records that pyarrow made them of, which are those of the same table in
// Parquet.
func TestRead(t *testing.T) {
	v, err := pyvalue.ParseJSON(content(t, "rows.json"))
	if err != nil {
		t.Fatal(err)
	}
	want := v.([]any)
	table, err := parquet.Read("testdata/rows.parquet")
	if err != nil {
		t.Fatal(err)
	}
	wantRows(t, "rows.parquet", table, want)

	for _, name := range whole {
		rows, err := Read(filepath.Join("testdata", name))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		wantRows(t, name, rows, want)
	}
	if rows, err := Read("testdata/norows.arrow"); err != nil || len(rows) != 0 {
		t.Errorf("%v %v", rows, err)
	}
}

// TestWide: dates, times, binaries and numbers of every width are what Parquet makes of them.
func TestWide(t *testing.T) {
	want, err := parquet.Read("testdata/wide.parquet")
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Read("testdata/wide.arrow")
	if err != nil {
		t.Fatal(err)
	}
	wantRows(t, "wide.arrow", rows, want)
}

// TestDelta: a dictionary that grows from batch to batch.
func TestDelta(t *testing.T) {
	rows, err := Read("testdata/delta.arrow")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, pyvalue.Repr(r))
	}
	want := "{'key': 'a'} {'key': 'a'} {'key': None} {'key': 'b'} {'key': 'a'} {'key': None} " +
		"{'key': 'c'} {'key': 'a'} {'key': None}"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("%s, want %s", s, want)
	}
}

// TestLines: the lines are the records.
func TestLines(t *testing.T) {
	rows, err := Read("testdata/stream.arrow")
	if err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	if err := Lines("testdata/stream.arrow", &lines); err != nil {
		t.Fatal(err)
	}
	var back []any
	for line := range bytes.Lines(lines.Bytes()) {
		v, err := pyvalue.ParseJSON(line)
		if err != nil {
			t.Fatal(err)
		}
		back = append(back, v)
	}
	wantRows(t, "lines", rows, back)

	full := errors.New("full")
	if err := Lines("testdata/stream.arrow", failing{full}); !errors.Is(err, full) || errors.Is(err, ErrFormat) {
		t.Errorf("a full disk: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestRefused: what no record can have is refused by name, with what to do.
func TestRefused(t *testing.T) {
	for name, want := range map[string]string{
		"decimal.arrow": `column "decimal": not supported in Arrow files: decimals (HINT: write the file anew`,
		"map.arrow":     `column "map": not supported in Arrow files: maps (HINT:`,
		"union.arrow":   `column "union": not supported in Arrow files: unions`,
		"runs.arrow":    `column "runs": not supported in Arrow files: runs (run-end encoding)`,
		"large.arrow":   "row 0: column large: not supported in Arrow files: the whole number 9223372036854775808",
		"v1.feather":    "not supported in Arrow files: Feather of version 1 (HINT:",
	} {
		_, err := Read(filepath.Join("testdata", name))
		if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// TestNoUTF8: a text that is declared to be UTF-8 and is not is refused by row and column, in Parquet alike; the bytes
// of a binary are no such text (TestWide).
func TestNoUTF8(t *testing.T) {
	for name, want := range map[string]string{
		"latin.arrow":       "bad Arrow file: row 4: column text",
		"latindict.arrow":   "bad Arrow file: row 4: column text",
		"latinlist.arrow":   "bad Arrow file: row 4: column text: column content",
		"latin.parquet":     "bad Parquet file: row 4: column text",
		"latindict.parquet": "bad Parquet file: row 4: column text",
		"latinlist.parquet": "bad Parquet file: row 4: column text.list.element.content",
	} {
		lines := Lines
		if strings.HasSuffix(name, ".parquet") {
			lines = parquet.Lines
		}
		want += ": not valid UTF-8 at byte 3"
		if err := lines(filepath.Join("testdata", name), io.Discard); !errors.Is(err, pyvalue.ErrUTF8) ||
			err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// TestCut: a file that is cut anywhere is refused, whatever is left of it.
func TestCut(t *testing.T) {
	for _, name := range append(whole, "delta.arrow", "norows.arrow") {
		text := content(t, name)
		for n := range text {
			if _, err := read(bytes.NewReader(text[:n]), int64(n)); !errors.Is(err, ErrFormat) {
				t.Errorf("%s, %d of %d bytes: %v", name, n, len(text), err)
			}
		}
		if !strings.HasSuffix(name, ".feather") && name != "file.arrow" {
			more := append(text, 0)
			if _, err := read(bytes.NewReader(more), int64(len(more))); !errors.Is(err, ErrFormat) {
				t.Errorf("%s and a byte more: %v", name, err)
			}
		}
	}
}

// TestFaults: a byte that is not what it was, anywhere, is an error or other records, never a panic, and takes no more
// memory than a file of that size may.
func TestFaults(t *testing.T) {
	for _, name := range []string{"types.arrow", "file.arrow", "lz4.arrow", "zstd.arrow"} {
		text := content(t, name)
		for i := range text {
			bad := bytes.Clone(text)
			bad[i] ^= 0x55
			done := fuzzlimit.Watch(t, len(bad))
			_, err := read(bytes.NewReader(bad), int64(len(bad)))
			done()
			if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s, byte %d: %v", name, i, err)
			}
		}
	}
}

// TestShrunk: a file that becomes shorter while it is read is no file that ends.
func TestShrunk(t *testing.T) {
	text := content(t, "stream.arrow")
	_, err := read(bytes.NewReader(text[:len(text)-8]), int64(len(text)))
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range append(whole, "wide.arrow", "delta.arrow", "norows.arrow", "large.arrow") {
		f.Add(content(f, name))
	}

	f.Fuzz(func(t *testing.T, text []byte) {
		defer fuzzlimit.Watch(t, len(text))()
		rows, err := read(bytes.NewReader(text), int64(len(text)))
		if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrUnsupported) {
			t.Errorf("an error of no kind: %v", err)
		}
		for _, r := range rows {
			if r == nil {
				t.Error("a record that is none")
			}
		}
	})
}
