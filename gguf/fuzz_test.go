package gguf

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzOpen gives any bytes to the reader. What it accepts must be readable throughout, and writing it again must give
// a file that says the same.
func FuzzOpen(f *testing.F) {
	for _, c := range faults {
		f.Add(c.data)
	}
	golden, err := filepath.Glob("testdata/*.gguf")
	if err != nil || len(golden) == 0 {
		f.Fatal("no golden files", err)
	}
	for _, path := range golden {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1<<16 { // mutations of what is large hit the data
			f.Add(b)
		}
	}
	f.Add(head(3, 2).pair("a", List([]string{"x", ""})).pair(alignmentKey, Of(uint32(8))).
		tensor("b", F32, 8).tensor("a", F16, 0, 2).tensor("e", Q8_0, 16, 0, 7).data(64).b)

	f.Fuzz(func(t *testing.T, b []byte) {
		defer fuzzlimit.Watch(t, len(b))()

		src, err := OpenBytes(b)
		if err != nil {
			if err.Error() == "" || bytes.ContainsRune([]byte(err.Error()), '\n') {
				t.Errorf("not one line: %q", err)
			}
			return
		}

		var tensors []Info
		for _, name := range src.Names() {
			info, ok := src.Info(name)
			data, err := src.Bytes(name)
			if !ok || err != nil || int64(len(data)) != info.Size || info.Rows()*info.RowSize() != info.Size {
				t.Fatalf("%v: %d bytes, %v", info, len(data), err)
			}
			decodeAll(t, info, data)
			if len(info.Name) <= maxName {
				tensors = append(tensors, info)
			}
		}
		for _, e := range src.Metadata() {
			readAll(t, e.Value)
		}

		rewrite(t, src, tensors)
	})
}

// decodeAll decodes rows, which may fail, but only as documented.
func decodeAll(t *testing.T, info Info, data []byte) {
	if !info.Type.Decodable() || info.Size == 0 || info.Cols() > 1<<20 {
		return
	}
	row := make([]float32, info.Cols())
	for r := range min(info.Rows(), 4) {
		if err := info.Type.Decode(row, data[r*info.RowSize():][:info.RowSize()]); err != nil && err.Error() == "" {
			t.Errorf("%v: %v", info, err)
		}
	}
}

// readAll asks a value for everything it could be; one answer must come, but for arrays of mixed signs.
func readAll(t *testing.T, v Value) {
	if v.String() == "" {
		t.Errorf("%v has no text", v.Kind())
	}
	if v.Kind() != Array {
		return
	}
	elem, _ := v.Elem()
	if list, ok := v.Strings(); ok != (elem == String || v.Len() == 0) || ok && len(list) != v.Len() {
		t.Errorf("%d strings of %d items of %s", len(list), v.Len(), elem)
	}
	if list, ok := v.Ints(); ok && len(list) != v.Len() {
		t.Errorf("%d integers of %d items", len(list), v.Len())
	}
}

// rewrite lays the tensors out again, in the order of their data, and reads that.
func rewrite(t *testing.T, src *File, tensors []Info) {
	l, err := plan(tensors, src.Metadata())
	if err != nil {
		t.Fatal(err)
	}
	if l.Size > 1<<24 { // alignments of gigabytes
		return
	}

	again := make([]byte, l.Size)
	copy(again, l.Head)
	for i, info := range tensors {
		data, _ := src.Bytes(info.Name)
		copy(again[l.Regions[i].Offset:], data)
	}

	copied, err := OpenBytes(again)
	if err != nil {
		t.Fatalf("written again: %v", err)
	}
	for i, e := range src.Metadata() {
		if got := copied.Metadata()[i]; got != e {
			t.Fatalf("%v became %v", e, got)
		}
	}
	for _, info := range tensors {
		want, _ := src.Bytes(info.Name)
		if got, err := copied.Bytes(info.Name); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: other bytes, %v", info, err)
		}
	}
}
