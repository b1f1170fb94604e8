package corpus

import (
	"bufio"
	"bytes"
	"testing"
	"unicode/utf8"

	"github.com/modelcompress/compress/internal/fuzzlimit"
)

// FuzzRecord: a line is refused or gives UTF-8 text; it never panics.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{
		`"a"`, `{"text":"a"}`, `{"prompt":"a","completion":"b"}`,
		`{"messages":[{"role":"u","content":[{"type":"text","text":"x"}]}]}`,
		`{"text":null}`, `{"messages":[{"content":3}]}`, `[[1]]`, `{"text":"\ud800"}`, "\"\xff\"", `{"text":1e999}`,
	} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, line []byte) {
		defer fuzzlimit.Watch(t, len(line))()
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			return
		}
		if text, err := parseRecord(line); err == nil && !utf8.ValidString(text) {
			t.Errorf("%q gives %q", line, text)
		}
	})
}

// FuzzArrays: a JSON file of ids is refused or gives rows within the vocabulary.
func FuzzArrays(f *testing.F) {
	for _, s := range []string{"[[1,2],[3]]", "[[-1]]", "[[1e3]]", "[[", "[[1],", "[[1.0]] x", "[[1,\"a\"]]", "[[]]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()
		rows, err := (&source{}).readArrays(bufio.NewReader(bytes.NewReader(data)), 5000)
		checkRows(t, rows, err)
	})
}

// FuzzTensor: the same for a .safetensors file.
func FuzzTensor(f *testing.F) {
	good := tensorFile("input_ids", "I64", 2, 3, func(i, j int) int64 { return int64(i + j) })
	f.Add(good)
	f.Add(good[:len(good)-3])
	f.Add(bytes.Replace(good, []byte("[2,3]"), []byte("[9,9]"), 1))
	f.Add(bytes.Replace(good, []byte("[3,51]"), []byte("[3,-1]"), 1))
	f.Add([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer fuzzlimit.Watch(t, len(data))()
		rows, err := readTensor(bufio.NewReader(bytes.NewReader(data)), 5000, []string{"calib_ids", "input_ids"})
		checkRows(t, rows, err)
	})
}

func checkRows(t *testing.T, rows [][]int32, err error) {
	for i, row := range rows {
		for j, id := range row {
			if err == nil && (id < 0 || id >= 5000) {
				t.Errorf("row %d, column %d: %d", i, j, id)
			}
		}
	}
}
