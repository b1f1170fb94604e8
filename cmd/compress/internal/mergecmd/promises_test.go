package mergecmd

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/cmd/compress/internal/cli/clitest"
	"github.com/modelcompress/compress/editeval/task"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/merge"
	"github.com/modelcompress/compress/merge/search"
)

// TestWeights: a weight stands behind the last equals sign; what is none, or names nothing, is refused.
func TestWeights(t *testing.T) {
	for arg, want := range map[string]struct {
		name   string
		weight float64
	}{
		"a.txt": {"a.txt", 1}, "a.txt=0.5": {"a.txt", .5}, "a=b=1e-3": {"a=b", .001}, "x=2": {"x", 2},
	} {
		if name, weight, err := weighted("data", arg); err != nil || name != want.name || weight != want.weight {
			t.Errorf("%s: %q, %g, %v", arg, name, weight, err)
		}
	}

	for _, arg := range []string{"a=", "a=0", "a=-1", "a=NaN", "a=Inf", "a=x", "a=b.txt", "=0.5", "="} {
		if name, _, err := weighted("tasks", arg); !cli.IsUsage(err) || name != "" ||
			!strings.HasPrefix(err.Error(), "--tasks "+arg+": ") {
			t.Errorf("%s: %q, %v", arg, name, err)
		}
	}
}

// TestSearchFlags: each flag that makes no sense is refused by name, and what is right is not.
func TestSearchFlags(t *testing.T) {
	good := SearchOptions{Data: []string{"x"}, Generations: 1, Shots: -1}
	for want, change := range map[string]func(o *SearchOptions){
		"":                         func(*SearchOptions) {},
		"give --data or --tasks":   func(o *SearchOptions) { o.Data = nil },
		"--task-data and --metric": func(o *SearchOptions) { o.Metric = "acc" },
		"go with --tasks":          func(o *SearchOptions) { o.TaskData = []string{"d"} },
		"--generations 0":          func(o *SearchOptions) { o.Generations = 0 },
		"--seqlen 1: want 2":       func(o *SearchOptions) { o.SeqLen = 1 },
		"--seqlen -4":              func(o *SearchOptions) { o.SeqLen = -4 },
		"--limit and --task-limit": func(o *SearchOptions) { o.Limit = -1 },
		"or 0 for all":             func(o *SearchOptions) { o.TaskLimit = -1 },
		"--num-fewshot -2":         func(o *SearchOptions) { o.Shots = -2 },
		"--workers -1":             func(o *SearchOptions) { o.Workers = -1 },
	} {
		o := good
		change(&o)
		err := CheckSearch(o)
		if want == "" && err != nil || want != "" && (!cli.IsUsage(err) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// TestOptionsOfTheLibrary: every flag reaches the library's options, and those that make no sense are refused.
func TestOptionsOfTheLibrary(t *testing.T) {
	o := Options{
		DType: "bfloat16", Shard: "2MB", Memory: "64MiB", Missing: "error", Ties: "index", KeepZeros: true,
		Truncate: true, NonFinite: true, Overwrite: true,
	}
	said := clitest.Run(t, func(j *cli.Job) (any, error) { return o.library(j) }, "--threads=3", "--seed=9")
	got, ok := said.Result.(merge.Options)
	if !ok || said.Code != 0 {
		t.Fatal(said)
	}

	want := merge.Options{
		Threads:        3,
		Memory:         64 << 20,
		Seed:           9,
		DType:          "bfloat16",
		MaxShard:       2_000_000,
		Missing:        "error",
		Truncate:       true,
		AllowNonFinite: true,
		Overwrite:      true,
		Ties:           "index",
		KeepZeros:      true,
	}
	if diff := cmp.Diff(want, got,
		cmpopts.IgnoreFields(merge.Options{}, "Mediator"),
		cmpopts.IgnoreUnexported(merge.Options{})); diff != "" {
		t.Error(diff)
	}

	for want, change := range map[string]func(o *Options){
		"--memory":                           func(o *Options) { o.Memory = "5" },
		"--max-shard-size keep: a merge has": func(o *Options) { o.Shard = "keep" },
		"--max-shard-size \"x\"":             func(o *Options) { o.Shard = "x" },
		"float8":                             func(o *Options) { o.DType = "float8" },
		"sideways":                           func(o *Options) { o.Missing = "sideways" },
		"last":                               func(o *Options) { o.Ties = "last" },
	} {
		bad := o
		change(&bad)
		clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return nil, Check(j, bad) }), want)
	}
}

// TestRefusedBeforeReading: what the flags say by themselves is told before a recipe is read, which is not there.
func TestRefusedBeforeReading(t *testing.T) {
	plain := Options{Shard: "none", Memory: "1GB", Missing: "error", Ties: "draw", Layout: "split"}
	clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return Run(j, "none.yaml", plain) }),
		"--out is not given (HINT: add --out DIR, or --dry-run to see the plan)")

	recipe := filepath.Join(t.TempDir(), "linear.yaml")
	text := "merge_method: linear\nmodels: [{model: a, parameters: {weight: 1}}, {model: b, parameters: {weight: 1}}]\n"
	if err := os.WriteFile(recipe, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}

	plain.Out = "out"
	for _, change := range []func(o *Options){
		func(o *Options) { o.Layout = "stacked" }, func(o *Options) { o.AllowSame = true },
	} {
		o := plain
		change(&o)
		clitest.Refused(t, clitest.Run(t, func(j *cli.Job) (any, error) { return Run(j, recipe, o) }),
			"--layout and --allow-same are for mixtures of experts, which "+recipe+" is not")
	}
}

// TestTextsTravel: windows are the same behind their journey to a worker, with labels and without, and lengths that do
// not fit are refused.
func TestTextsTravel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := rapid.SliceOfN(rapid.SliceOfN(rapid.Int32(), 0, 5), 0, 5).Draw(t, "ids")
		w := corpus.Windows{IDs: ids}
		if rapid.Bool().Draw(t, "labelled") {
			for _, row := range ids {
				w.Labels = append(w.Labels, slices.Clone(row))
			}
		}

		text := flat(w)
		got, err := text.windows()
		if err != nil || len(got.IDs) != len(ids) || (len(got.Labels) > 0) != (len(text.Labels) > 0) {
			t.Fatalf("%v: %v, %v", w, got, err)
		}
		for i := range ids {
			if !slices.Equal(got.IDs[i], ids[i]) || len(got.Labels) > 0 && !slices.Equal(got.Labels[i], ids[i]) {
				t.Fatalf("window %d: %v, want %v", i, got.IDs[i], ids[i])
			}
		}
	})

	for _, bad := range []Text{
		{IDs: []int32{1, 2}, Lengths: []int32{3}},
		{IDs: []int32{1, 2}, Lengths: []int32{-1}},
		{IDs: []int32{1, 2}, Lengths: []int32{2, 1}},
		{IDs: []int32{1, 2}, Labels: []int32{1}, Lengths: []int32{1}},
	} {
		if w, err := bad.windows(); !errors.Is(err, jobs.ErrRefused) {
			t.Errorf("%+v: %v, %v", bad, w, err)
		}
	}
	if _, err := searchAims([]Aim{{Name: "neither"}}); !errors.Is(err, jobs.ErrRefused) {
		t.Error(err)
	}
}

// TestWholePaths: what lies in the working directory is named so that it means the same elsewhere; names of tasks stay.
func TestWholePaths(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("mine", 0o777); err != nil {
		t.Fatal(err)
	}

	tasks := &Tasks{Entry: "hellaswag", Data: []string{"mine", "not/there"}}
	if err := tasks.absolute(); err != nil {
		t.Fatal(err)
	}
	if tasks.Entry != "hellaswag" || !filepath.IsAbs(tasks.Data[0]) || filepath.Base(tasks.Data[0]) != "mine" ||
		tasks.Data[1] != "not/there" {
		t.Errorf("%+v", tasks)
	}
}

// TestFiguresOfTasks: which metric stands for a task, and whether more of it is better.
func TestFiguresOfTasks(t *testing.T) {
	yes, no := true, false
	results := func(better map[string]*bool, values map[string]any) *task.Results {
		return &task.Results{
			HigherIsBetter: map[string]map[string]*bool{"x": better}, Results: map[string]map[string]any{"x": values},
		}
	}
	many := map[string]*bool{"acc": &yes, "exact_match": &yes, "bits_per_byte": &no, "zeta": &no, "alpha": nil}

	for _, c := range []struct {
		name   string
		metric string
		r      *task.Results
		v      float64
		higher bool
	}{
		{"preferred", "", results(many, map[string]any{"acc,none": .7, "exact_match,none": .2}), .7, true},
		{
			"asked for", "bits_per_byte",
			results(many, map[string]any{"acc,none": .7, "bits_per_byte,none": 1.5}), 1.5, false,
		},
		{
			"the next that is preferred", "",
			results(map[string]*bool{"exact_match": &yes, "alpha": &no}, map[string]any{"exact_match,x": .3}), .3,
			true,
		},
		{
			"first by name", "",
			results(map[string]*bool{"zeta": &yes, "beta": &no}, map[string]any{"zeta,none": 1.0, "beta,none": 2.0}),
			2, false,
		},
		{"nobody says", "alpha", results(many, map[string]any{"alpha,none": .1}), .1, true},
		{"the first filter by name", "", results(many, map[string]any{"acc,b": .2, "acc,a": .1}), .1, true},
	} {
		tasks := &Tasks{Metric: c.metric}
		v, higher, err := tasks.figure(c.r, "x")
		if err != nil || v != c.v || higher != c.higher {
			t.Errorf("%s: %g, %t, %v; want %g, %t", c.name, v, higher, err, c.v, c.higher)
		}
	}

	for _, r := range []*task.Results{results(nil, nil), results(many, map[string]any{"acc,none": "not a number"})} {
		if _, _, err := (&Tasks{}).figure(r, "x"); !errors.Is(err, errMetric) {
			t.Error(err)
		}
	}
}

// TestCandidatesInMemory: as many at a time as fit, and where none fits all are merged on the disk.
func TestCandidatesInMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		slots := rapid.IntRange(1, 64).Draw(t, "slots")
		space := rapid.Int64Range(0, 1<<40).Draw(t, "room")
		bytes := rapid.Int64Range(0, 1<<38).Draw(t, "bytes")
		n, onDisk := resident(slots, space, bytes)
		switch {
		case onDisk && (n != slots || max(bytes, 1) <= space):
			t.Errorf("%d slots on the disk though %d of %d fit", n, bytes, space)
		case !onDisk && (n < 1 || n > slots || int64(n)*bytes > space):
			t.Errorf("%d of %d slots of %d bytes in %d", n, slots, bytes, space)
		case !onDisk && n < slots && int64(n+1)*max(bytes, 1) <= space:
			t.Errorf("%d of %d slots, and one more would fit", n, slots)
		}
	})

	for flag, want := range map[string]int64{"none": 0, "0": 0, "3MB": 3_000_000} {
		if got, err := room(flag, nil); err != nil || got != want {
			t.Errorf("--in-memory %s: %d, %v", flag, got, err)
		}
	}
	if _, err := room("much", nil); !cli.IsUsage(err) || !strings.Contains(err.Error(), "--in-memory") {
		t.Error(err)
	}
	if got, err := room("", free{}); err != nil || got > 500 || got <= 0 {
		t.Errorf("half of what is free: %d, %v", got, err)
	}
}

// free is a GPU with some memory.
type free struct{ kernels.Device }

func (free) Info() kernels.Info { return kernels.Info{Name: "cuda:0", Free: 1000} }

// TestFoldersOfWorkers: a worker finds the coordinator's models by what they hold, wherever they lie, and says of
// others no more than that they are others.
func TestFoldersOfWorkers(t *testing.T) {
	folder := func(files ...string) string {
		dir := t.TempDir()
		for _, f := range files {
			name, text, _ := strings.Cut(f, "=")
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	hash := func(dir string) string {
		sum, err := hashFolder(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}

	one := folder("config.json={}", "model.safetensors=1", "README.md=one")
	same := folder("README.md=two", "model.safetensors=1", "config.json={}")
	other := folder("config.json={}", "model.safetensors=2")
	renamed := folder("config.json={}", "other.safetensors=1")
	if hash(one) != hash(same) || hash(one) == hash(other) || hash(one) == hash(renamed) {
		t.Error("hashes of folders")
	}

	spec := &SearchSpec{Inputs: []search.Input{{Name: "m", Folder: "/nowhere"}}, Hashes: []string{hash(one)}}
	if got, err := find(t.Context(), []string{other, same}, spec); err != nil || got["m"] != same {
		t.Errorf("%v, %v", got, err)
	}

	_, err := find(t.Context(), []string{other}, spec)
	if !errors.Is(err, jobs.ErrRefused) || !strings.Contains(err.Error(), "no folder with the files of m") {
		t.Error(err)
	}

	spec.Inputs[0].Folder = one
	if got, err := find(t.Context(), nil, spec); err != nil || got["m"] != one {
		t.Errorf("where the coordinator has it: %v, %v", got, err)
	}

	spec.Inputs[0].Folder = other
	if _, err := find(t.Context(), nil, spec); !errors.Is(err, jobs.ErrRefused) {
		t.Errorf("other files there: %v", err)
	}
}

// TestFolderOfASearch: a folder with a journal is taken with --resume, emptied with --overwrite and refused otherwise,
// and two searches do not share one.
func TestFolderOfASearch(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	s := &searchRun{out: out}
	lock, err := folder.Take(out, false, false)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := folder.Take(out, false, false); !errors.Is(err, cli.ErrBusy) ||
		!strings.Contains(err.Error(), "--out "+out) {
		t.Errorf("a second search: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}

	journal := filepath.Join(out, search.JournalName)
	for _, text := range []string{"", "x"} {
		if err := os.WriteFile(journal, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		if s.begun() != (text != "") {
			t.Errorf("a journal of %d bytes: begun %t", len(text), s.begun())
		}
	}

	if _, err := folder.Take(out, false, false); !errors.Is(err, merge.ErrExists) ||
		!strings.Contains(err.Error(), "--resume continues it") {
		t.Error(err)
	}

	lock, err = folder.Take(out, true, false)
	if err != nil {
		t.Fatal(err)
	}
	if !s.begun() {
		t.Error("--resume removed the journal")
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}

	lock, err = folder.Take(out, false, true)
	if err != nil || s.begun() {
		t.Fatalf("--overwrite: %v, begun %t", err, s.begun())
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}

// TestJudgesAreReturned: a judge that cannot be made leaves its slot free for the next candidate, memory is divided
// among the slots, and what was begun is removed.
func TestJudgesAreReturned(t *testing.T) {
	lost := errors.New("no device")
	dir := filepath.Join(t.TempDir(), "candidates")
	if err := os.MkdirAll(filepath.Join(dir, "slot1"), 0o777); err != nil {
		t.Fatal(err)
	}

	b := newBench(&SearchSpec{Merge: merge.Options{Memory: 100}}, dir, 2,
		func() (kernels.Device, error) { return nil, lost })
	if b.memory != 50 {
		t.Errorf("each of two has %d of 100", b.memory)
	}

	for range 5 { // more often than there are slots
		if _, err := b.rate(t.Context(), nil); !errors.Is(err, lost) {
			t.Fatal(err)
		}
	}

	if len(b.free) != 2 {
		t.Errorf("%d of 2 are free", len(b.free))
	}
	if err := b.close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of candidates stays: %v", err)
	}
}
