package safetensors

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/system/systemtest"
)

// folder makes a folder of files by name.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// named is a file that holds empty tensors of these names.
func named(names ...string) string {
	var tensors []Info
	for _, name := range names {
		tensors = append(tensors, Info{Name: name, DType: F32, Shape: []int64{0}})
	}
	l, err := plan(tensors, nil, OrderGiven)
	if err != nil {
		panic(err)
	}
	return string(l.head)
}

func TestOpenDir(t *testing.T) {
	dir := folder(t, map[string]string{
		IndexName:                          ` {"metadata":{"total_size":0,"x":[1, 2]},"other":null,"weight_map":{"a":"b.safetensors","b":"a.safetensors","c":"b.safetensors"}} `,
		"a.safetensors":                    named("b"),
		"b.safetensors":                    named("c", "a"),
		"consolidated.safetensors":         "not read",
		"model.safetensors":                "not read either",
		"config.json":                      "{}",
		"x.safetensors" + partialSuffix:    "",
		"subfolder.safetensors.index.json": "",
	})

	d := mustOpenDir(t, dir)
	if got := fmt.Sprint(d.Names(), d.Shards(), d.ShardOf("a"), d.ShardOf("z"), d.Unused(), d.Path() == dir,
		d.DataSize()); got !=
		"[b c a] [a.safetensors b.safetensors]b.safetensors[consolidated.safetensors model.safetensors] true 0" {
		t.Error(got)
	}

	if got := d.IndexMetadata(); string(got["x"]) != "[1, 2]" || string(got["total_size"]) != "0" || len(got) != 2 {
		t.Errorf("index metadata %s", got)
	}
	if d.Shard("a.safetensors").Path() != filepath.Join(dir, "a.safetensors") || d.Shard("z") != nil {
		t.Error("wrong shard")
	}
}

func TestOpenDirWithoutIndex(t *testing.T) {
	for _, files := range []map[string]string{
		{SingleName: named("a"), "other.safetensors": ""},
		{"adapter_model.safetensors": named("a"), "README.md": ""},
	} {
		dir := folder(t, files)
		d := mustOpenDir(t, dir)
		if !slices.Equal(d.Names(), []string{"a"}) || d.Indexed() || d.IndexMetadata() != nil {
			t.Errorf("%v: %v", files, d.Names())
		}

		single := mustOpenDir(t, filepath.Join(dir, d.Shards()[0]))
		if !slices.Equal(single.Names(), []string{"a"}) || !slices.Equal(single.Shards(), d.Shards()) {
			t.Errorf("single: %v %v", single.Names(), single.Shards())
		}
	}
}

func index1(weightMap string) string { return `{"metadata":{},"weight_map":{` + weightMap + `}}` }

func TestOpenDirFaults(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  []error
		says  string
	}{
		{"empty", nil, []error{ErrNoModel}, "empty"},
		{
			"bin",
			map[string]string{"pytorch_model.bin": "", "config.json": ""},
			[]error{ErrNoModel},
			`only "pytorch_model.bin": convert`,
		},
		{"other", map[string]string{"config.json": ""}, []error{ErrNoModel}, `found "config.json"`},
		{
			"several",
			map[string]string{"a.safetensors": "", "b.safetensors": ""},
			[]error{ErrNoModel},
			`"a.safetensors", "b.safetensors"`,
		},
		{"unfinished", map[string]string{"model.safetensors.partial": ""}, []error{ErrNoModel}, "resume"},
		{"single broken", map[string]string{SingleName: "x"}, []error{ErrHeaderTooShort}, SingleName},
		{"index empty", map[string]string{IndexName: ""}, []error{ErrIndex, ErrInvalidJSON}, IndexName},
		{
			"index not UTF-8",
			map[string]string{IndexName: "{\"\xff\":1}"},
			[]error{ErrIndex, ErrHeaderNotUTF8},
			"byte 2",
		},
		{"index list", map[string]string{IndexName: "[]"}, []error{ErrIndex, ErrInvalidJSON}, ""},
		{
			"index duplicate",
			map[string]string{IndexName: index1(`"a":"x","a":"y"`)},
			[]error{ErrIndex, ErrDuplicateKey},
			`"a"`,
		},
		{
			"index duplicate in metadata",
			map[string]string{IndexName: `{"metadata":{"x":{"y":1,"y":1}}}`},
			[]error{ErrIndex, ErrDuplicateKey},
			`"y"`,
		},
		{
			"index two values",
			map[string]string{IndexName: index1(`"a":"x"`) + "{}"},
			[]error{ErrIndex, ErrInvalidJSON},
			"",
		},
		{
			"index without map",
			map[string]string{IndexName: `{"metadata":null}`},
			[]error{ErrIndex, ErrMissingTensor},
			"weight_map",
		},
		{
			"index empty map",
			map[string]string{IndexName: index1("")},
			[]error{ErrIndex, ErrMissingTensor},
			"weight_map",
		},
		{"index number", map[string]string{IndexName: index1(`"a":1`)}, []error{ErrIndex, ErrInvalidJSON}, `"a"`},
		{
			"index deep",
			map[string]string{IndexName: strings.Repeat(`{"x":`, 500)},
			[]error{ErrIndex, ErrInvalidJSON},
			"nested",
		},
		{
			"parent",
			map[string]string{IndexName: index1(`"a":"../x.safetensors"`)},
			[]error{ErrIndex, ErrShardPath},
			`"../x.safetensors"`,
		},
		{"absolute", map[string]string{IndexName: index1(`"a":"/etc/passwd"`)}, []error{ErrShardPath}, ""},
		{"subfolder", map[string]string{IndexName: index1(`"a":"x/y.safetensors"`)}, []error{ErrShardPath}, ""},
		{"backslash", map[string]string{IndexName: index1(`"a":"..\\x"`)}, []error{ErrShardPath}, ""},
		{"zero byte", map[string]string{IndexName: index1(`"a":"x\u0000"`)}, []error{ErrShardPath}, ""},
		{"dot", map[string]string{IndexName: index1(`"a":"."`)}, []error{ErrShardPath}, ""},
		{"dots", map[string]string{IndexName: index1(`"a":".."`)}, []error{ErrShardPath}, ""},
		{"no name", map[string]string{IndexName: index1(`"a":""`)}, []error{ErrShardPath}, ""},
		{
			"long name",
			map[string]string{IndexName: index1(`"a":"` + strings.Repeat("x", 300) + `"`)},
			[]error{ErrShardPath},
			"…",
		},
		{
			"shards missing",
			map[string]string{
				IndexName:       index1(`"a":"1.safetensors","b":"2.safetensors","c":"3.safetensors"`),
				"2.safetensors": named("b"),
			},
			[]error{ErrMissingShard},
			`2 of 3 that model.safetensors.index.json names: "1.safetensors", "3.safetensors"`,
		},
		{
			"shard broken",
			map[string]string{IndexName: index1(`"a":"1.safetensors"`), "1.safetensors": named("a") + "x"},
			[]error{ErrTrailing},
			"1.safetensors",
		},
		{
			"tensor missing",
			map[string]string{
				IndexName:       index1(`"a":"1.safetensors","b":"1.safetensors"`),
				"1.safetensors": named("a"),
			},
			[]error{ErrMissingTensor},
			`"b"`,
		},
		{
			"tensor too many",
			map[string]string{IndexName: index1(`"a":"1.safetensors"`), "1.safetensors": named("a", "b")},
			[]error{ErrExtraTensor},
			`"b"`,
		},
		{
			"tensor twice",
			map[string]string{
				IndexName: index1(`"a":"1.safetensors","b":"2.safetensors"`), "1.safetensors": named("a"),
				"2.safetensors": named("b", "a"),
			},
			[]error{ErrExtraTensor},
			`places it in "1.safetensors"`,
		},
	} {
		dir := folder(t, c.files)
		_, err := OpenDir(dir)
		for _, want := range c.want {
			if !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", c.name, err, want)
			}
		}

		if err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%s: message without %q or the folder: %v", c.name, c.says, err)
		}
	}

	if _, err := OpenDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestLinks follows symbolic links that are entries of the folder, but in a snapshot of the hub's cache.
func TestLinks(t *testing.T) {
	systemtest.NeedsLinks(t)
	outside := filepath.Join(folder(t, map[string]string{"blob": named("a")}), "blob")
	for name, files := range map[string]map[string]string{
		"1.safetensors": {IndexName: index1(`"a":"1.safetensors"`)},
		SingleName:      {},
		IndexName:       {"1.safetensors": named("a")},
	} {
		dir := folder(t, files)
		up, err := filepath.Rel(dir, outside)
		if err != nil {
			t.Fatal(err)
		}

		for _, target := range []string{outside, up} {
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			mustLink(t, dir, name, target == outside)
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}

	dir := folder(t, map[string]string{"blob": named("a")})
	if err := os.Symlink("blob", filepath.Join(dir, SingleName)); err != nil {
		t.Fatal(err)
	}

	mustOpenDir(t, dir)
	mustOpen(t, filepath.Join(dir, SingleName))
	if err := os.Symlink("nowhere", filepath.Join(dir, IndexName)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("dangling link: %v", err)
	}
}

// mustLink opens a folder with a link out of it, or finds that it is no model for another reason; as a snapshot of the
// hub's cache the folder is refused.
func mustLink(t *testing.T, dir, name string, absolute bool) {
	t.Helper()
	if name == IndexName { // it leads to a file of weights, which is no index
		if _, err := OpenDir(dir); !errors.Is(err, ErrIndex) {
			t.Errorf("a linked index: %v", err)
		}
	} else if d := mustOpenDir(t, dir); d.ShardOf("a") != name {
		t.Errorf("%s: the tensor is in %q", name, d.ShardOf("a"))
	}

	snapshot := filepath.Join(t.TempDir(), "models--a--b", "snapshots", "1f")
	if err := errors.Join(os.MkdirAll(filepath.Dir(snapshot), 0o777), os.Rename(dir, snapshot)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(snapshot); err == nil || absolute && !errors.Is(err, ErrShardPath) {
		t.Errorf("%s in a snapshot: %v", name, err)
	}
	if err := os.Rename(snapshot, dir); err != nil {
		t.Fatal(err)
	}
}

// TestNotRegular refuses pipes and folders without waiting for them.
func TestNotRegular(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, SingleName)
	if err := systemtest.Pipe(pipe); err != nil {
		t.Skip("no pipes here: ", err)
	}

	for _, path := range []string{pipe, dir} {
		if _, err := Open(path); !errors.Is(err, ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
	}

	if _, err := OpenDir(dir); !errors.Is(err, ErrNotRegular) {
		t.Errorf("got %v", err)
	}
	if err := os.Rename(pipe, filepath.Join(dir, IndexName)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(dir); !errors.Is(err, ErrNotRegular) {
		t.Errorf("index: %v", err)
	}
}

// TestIndexWritten reads the index that CreateDir writes with the standard library.
func TestIndexWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "m")
	tensors := []Info{{Name: "z<", DType: F32, Shape: []int64{2}}, {Name: "é", DType: U8, Shape: []int64{3}}}
	opts := DirOptions{MaxShardSize: 8, IndexMetadata: map[string]string{"tool": "x"}}
	w, err := CreateDir(dir, tensors, map[string]string{"format": "pt"}, opts)
	if err != nil {
		t.Fatal(err)
	}

	writeAll(t, w, tensors, 1, 100)
	if err := errors.Join(w.Finish(), w.Finish(), w.Abort()); err != nil {
		t.Fatal(err)
	}

	b, err := os.ReadFile(filepath.Join(dir, IndexName))
	if err != nil {
		t.Fatal(err)
	}

	var x struct {
		Metadata map[string]any    `json:"metadata"`
		Weights  map[string]string `json:"weight_map"`
	}

	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()

	if err := dec.Decode(&x); err != nil || fmt.Sprint(x.Metadata, x.Weights) !=
		"map[tool:x total_size:11] map[z<:model-00001-of-00002.safetensors é:model-00002-of-00002.safetensors]" {
		t.Errorf("%v\n%s", err, b)
	}

	d := mustOpenDir(t, dir)
	checkAll(t, d, tensors)
	if fmt.Sprint(d.Metadata(), d.Shard(d.Shards()[1]).Metadata()) != "map[format:pt] map[format:pt]" {
		t.Error(d.Metadata())
	}
}

func TestSplit(t *testing.T) {
	size := func(n int64) Info { return Info{Name: fmt.Sprint("t", n), DType: U8, Shape: []int64{n}} }
	for _, c := range []struct {
		opts DirOptions
		want string
	}{
		{DirOptions{}, "model.safetensors[t5 t6 t0 t20 t4]"},
		{DirOptions{MaxShardSize: 11}, "model-00001-of-00003.safetensors[t5 t6 t0] " +
			"model-00002-of-00003.safetensors[t20] model-00003-of-00003.safetensors[t4]"},
		{DirOptions{MaxShardSize: 1 << 62}, "model.safetensors[t5 t6 t0 t20 t4]"},
		{
			DirOptions{ShardOf: map[string]string{
				"t5": "b.safetensors", "t6": "a.safetensors", "t0": "b.safetensors",
				"t20": "a.safetensors", "t4": "b.safetensors",
			}}, "a.safetensors[t6 t20] b.safetensors[t5 t0 t4]",
		},
	} {
		shards, err := split([]Info{size(5), size(6), size(0), size(20), size(4)}, c.opts)
		var got []string
		for _, s := range shards {
			var names []string
			for _, i := range s.tensors {
				names = append(names, i.Name)
			}
			got = append(got, s.name+fmt.Sprint(names))
		}
		if strings.Join(got, " ") != c.want || err != nil {
			t.Errorf("%v: %v %v", c.opts, got, err)
		}
	}
}

func TestSplitFaults(t *testing.T) {
	a, b := Info{Name: "a", DType: U8, Shape: []int64{1}}, Info{Name: "b", DType: U8, Shape: []int64{1}}
	for _, c := range []struct {
		tensors []Info
		opts    DirOptions
		want    error
	}{
		{[]Info{a}, DirOptions{MaxShardSize: -1}, ErrShardPlan},
		{[]Info{a}, DirOptions{IndexMetadata: map[string]string{"total_size": "1"}}, ErrShardPlan},
		{[]Info{a}, DirOptions{MaxShardSize: 1, ShardOf: map[string]string{"a": "x.safetensors"}}, ErrShardPlan},
		{[]Info{a}, DirOptions{ShardOf: map[string]string{"b": "x.safetensors"}}, ErrShardPlan},
		{[]Info{a}, DirOptions{ShardOf: map[string]string{"a": "x.safetensors", "b": "x.safetensors"}}, ErrShardPlan},
		{[]Info{a, b}, DirOptions{ShardOf: map[string]string{"a": SingleName, "b": "x.safetensors"}}, ErrShardPlan},
		{[]Info{a}, DirOptions{ShardOf: map[string]string{"a": "../x.safetensors"}}, ErrShardPath},
		{[]Info{a}, DirOptions{ShardOf: map[string]string{"a": "x.bin"}}, ErrShardPath},
		{[]Info{a, b, a}, DirOptions{MaxShardSize: 1}, ErrDuplicateKey},
		{[]Info{a, a}, DirOptions{}, ErrDuplicateKey},
		{[]Info{{Name: "x", DType: F4, Shape: []int64{1}}}, DirOptions{}, ErrNotByteAligned},
		{[]Info{{Name: metadataKey, DType: U8}}, DirOptions{}, ErrReservedName},
	} {
		dir := filepath.Join(t.TempDir(), "m")
		if _, err := CreateDir(dir, c.tensors, nil, c.opts); !errors.Is(err, c.want) {
			t.Errorf("%v: %v", c.opts, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: a folder is left", c.opts)
		}
	}
}

// TestFolderTaken leaves a folder with another model as it is.
func TestFolderTaken(t *testing.T) {
	for _, name := range []string{SingleName, IndexName, "x.safetensors", "x.safetensors.partial"} {
		dir := folder(t, map[string]string{name: "precious", "config.json": ""})
		if _, err := CreateDir(dir, mixed(), nil, DirOptions{}); !errors.Is(err, ErrExists) {
			t.Errorf("%s: %v", name, err)
		}
		if b, err := os.ReadFile(filepath.Join(dir, name)); string(b) != "precious" || err != nil {
			t.Errorf("%s was touched", name)
		}
		if _, err := ReopenDir(dir, mixed(), nil, DirOptions{}); err == nil {
			t.Errorf("%s: resumed", name)
		}
	}
}
