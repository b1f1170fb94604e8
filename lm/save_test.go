package lm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/cpu"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/safetensors"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("LM_TEST_SAVE"); dir != "" {
		if err := saveChild(dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}

	if err := flag.Set("rapid.seed", "1"); err != nil { // the same draws in every run; 0 draws anew
		panic(err)
	}

	os.Exit(m.Run())
}

// tree gives a hash of every file below a folder.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[rel] = fmt.Sprintf("%x", sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return all
}

// checkpoint writes a sharded model with the files that usually stand beside it.
func checkpoint(t testing.TB, shard int64) string {
	t.Helper()
	dir := recipe{config: tiny()["llama"], seed: 21, dtype: safetensors.BF16, shard: shard}.write(t, t.TempDir())
	for name, text := range map[string]string{
		"generation_config.json": `{"eos_token_id": [1, 2]}`, "tokenizer.json": "{}", "tokenizer_config.json": "{}",
		"vocab.json": "{}",
		"merges.txt": "", "spiece.model": "x", "chat_template.jinja": "y", "LICENSE": "free", "README.md": "card",
		"train.log": "z",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	return dir
}

func saver(t testing.TB, m *Model, dir string, o SaveOptions) *Saver {
	t.Helper()
	s, err := m.NewSaver(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func finish(t testing.TB, s *Saver) {
	t.Helper()
	if err := s.Finish(ctx); err != nil {
		t.Fatal(err)
	}
}

// negate changes the sign of a parameter.
func negate(m *Model, name string) error {
	w, err := m.MutableParam(name)
	if err != nil {
		return err
	}
	for i, v := range w.Buf.U16() {
		w.Buf.U16()[i] = v ^ 0x8000
	}
	w.Buf.Changed()
	return nil
}

// An unchanged model is saved tensor by tensor as it was, in the same files, with what stands beside them.
func TestSaveUnchanged(t *testing.T) {
	for _, shard := range []int64{0, 3000} {
		src := checkpoint(t, shard)
		m := load(t, src, cpu.New(cpu.Options{}), Options{})
		out := filepath.Join(t.TempDir(), "deep", "out")
		finish(t, saver(t, m, out, SaveOptions{}))

		want := tree(t, src)
		got := tree(t, out)
		if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
			t.Errorf("files %v", slices.Sorted(maps.Keys(got)))
		}

		for name, hash := range want {
			if !strings.HasSuffix(name, ".safetensors") && got[name] != hash {
				t.Errorf("%s differs", name)
			}
		}

		sameTensors(t, m.Source(), out, nil)
		if left, _ := os.ReadDir(filepath.Dir(out)); len(left) != 1 {
			t.Errorf("left beside the output: %v", left)
		}
	}
}

// sameTensors compares the tensors of a folder with a source, except some.
func sameTensors(t *testing.T, src safetensors.Source, out string, except []string) {
	t.Helper()
	d, err := safetensors.OpenDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	if !slices.Equal(slices.Sorted(slices.Values(d.Names())), slices.Sorted(slices.Values(src.Names()))) {
		t.Fatalf("tensors %v", d.Names())
	}

	for _, name := range src.Names() {
		a, _ := src.Bytes(name)
		b, _ := d.Bytes(name)
		if bytes.Equal(a, b) == slices.Contains(except, name) {
			t.Errorf("%s: same %v", name, bytes.Equal(a, b))
		}
	}
}

// Changed tensors are saved as they are now; the model goes on with the saved copy after the memory is given back.
func TestSaveChanged(t *testing.T) {
	m := load(t, checkpoint(t, 3000), cpu.New(cpu.Options{}), Options{Stream: true})
	name := m.Linears(1)[2].Name
	if err := negate(m, name); err != nil {
		t.Fatal(err)
	}

	ids := tokens(1, 37, 9)
	want := forward(t, m, ids, ForwardOptions{}).Loss
	out := filepath.Join(t.TempDir(), "out")
	s := saver(t, m, out, SaveOptions{})
	if s.Done(name) || s.Complete() {
		t.Error("done before the start")
	}
	if err := s.Save(name); err != nil || !s.Done(name) {
		t.Fatal(err)
	}

	for range 2 {
		m.ReleaseBlock(1, true)
		if p := m.params[name]; p.Value.Buf != nil {
			t.Error("the saved copy is still in memory")
		}
		if got := forward(t, m, ids, ForwardOptions{}).Loss; got != want {
			t.Errorf("loss %g after saving, want %g", got, want)
		}

		finish(t, s)
	}

	sameTensors(t, m.Source(), out, []string{name})
	if got := forward(t, load(t, out, cpu.New(cpu.Options{}), Options{}), ids, ForwardOptions{}).Loss; got != want {
		t.Errorf("loss %g from the folder, want %g", got, want)
	}
	if err := s.Save(name); !errors.Is(err, safetensors.ErrClosed) {
		t.Errorf("saving after the end: %v", err)
	}
}

// Conversion rounds to nearest even, changes the configuration's dtype and nothing else in it; shards follow the size.
func TestSaveConverted(t *testing.T) {
	src := recipe{config: tiny()["llama"], seed: 22}.write(t, t.TempDir())
	config := []byte("{\n \"torch_dtype\" : \"float32\", \"nested\": {\"dtype\": \"x\"}, \"note\": \"dtype\",")
	text, _ := os.ReadFile(filepath.Join(src, "config.json"))
	config = append(config, text[1:]...)
	if err := os.WriteFile(filepath.Join(src, "config.json"), config, 0o666); err != nil {
		t.Fatal(err)
	}

	m := load(t, src, cpu.New(cpu.Options{}), Options{})
	changed := m.Linears(0)[0].Name
	w, err := m.MutableParam(changed)
	if err != nil {
		t.Fatal(err)
	}

	w.Buf.F32()[0] = 1.00390625 // halfway between two bfloat16
	out := filepath.Join(t.TempDir(), "out")
	finish(t, saver(t, m, out, SaveOptions{DType: safetensors.BF16, MaxShardSize: 4000}))
	got, _ := os.ReadFile(filepath.Join(out, "config.json"))
	if want := strings.Replace(string(config), `"float32"`, `"bfloat16"`, 1); string(got) != want {
		t.Errorf("config.json: %s", got)
	}

	d, err := safetensors.OpenDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()

	if len(d.Shards()) < 3 || !d.Indexed() {
		t.Errorf("shards %v", d.Shards())
	}

	for _, name := range m.Tensors() {
		value, _ := m.Param(name)
		raw, _ := d.Bytes(name)
		for i, v := range values(value) {
			if h := binary.LittleEndian.Uint16(raw[2*i:]); h != kernels.ToBF16(v) {
				t.Fatalf("%s: element %d is %#x, want %#x", name, i, h, kernels.ToBF16(v))
			}
		}
	}

	load(t, out, cpu.New(cpu.Options{}), Options{})
	if _, err := m.NewSaver(out+"2", SaveOptions{DType: safetensors.I64}); !errors.Is(err, ErrDType) {
		t.Errorf("converting to integers: %v", err)
	}
}

// What must not be replaced is not; what may be is replaced in one step.
func TestSaveTargets(t *testing.T) {
	src := checkpoint(t, 0)
	m := load(t, src, cpu.New(cpu.Options{}), Options{})
	other := filepath.Join(t.TempDir(), "notes")
	if err := os.MkdirAll(other, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "diary.txt"), []byte("dear"), 0o666); err != nil {
		t.Fatal(err)
	}

	for name, c := range map[string]struct {
		dir string
		o   SaveOptions
		is  error
	}{
		"existing":       {other, SaveOptions{}, ErrExists},
		"no checkpoint":  {other, SaveOptions{Overwrite: true}, ErrTarget},
		"itself":         {src, SaveOptions{Overwrite: true}, ErrInPlace},
		"parent":         {filepath.Dir(src), SaveOptions{Overwrite: true}, ErrTarget},
		"other finished": {other, SaveOptions{Resume: true, Fingerprint: "a"}, ErrExists},
	} {
		if _, err := m.NewSaver(c.dir, c.o); !errors.Is(err, c.is) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}

	out := filepath.Join(t.TempDir(), "out")
	if err := os.Mkdir(out, 0o777); err != nil { // empty: fine
		t.Fatal(err)
	}

	finish(t, saver(t, m, out, SaveOptions{Fingerprint: "a"}))
	if err := os.WriteFile(filepath.Join(out, "NOTICE.old"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if s := saver(t, m, out, SaveOptions{Resume: true, Fingerprint: "a"}); !s.Complete() || !s.Done(m.Tensors()[0]) {
		t.Error("a finished job is not recognised")
	}
	if _, err := m.NewSaver(out, SaveOptions{Resume: true, Fingerprint: "b"}); !errors.Is(err, ErrExists) ||
		!strings.Contains(err.Error(), "the source or the options have changed since it was made") {
		t.Errorf("another job's output: %v", err)
	}

	s := saver(t, m, out, SaveOptions{Overwrite: true})
	if _, err := os.Stat(filepath.Join(out, "NOTICE.old")); err != nil {
		t.Error("the old folder is gone before the new one is complete")
	}

	finish(t, s)
	if got := tree(t, out); got["NOTICE.old"] != "" || got["config.json"] == "" {
		t.Errorf("%v", got)
	}
	if left, _ := os.ReadDir(filepath.Dir(out)); len(left) != 1 {
		t.Errorf("left beside the output: %v", left)
	}
	if err := os.Symlink("/etc/nothing", filepath.Join(src, "tokenizer_extra.json")); err != nil {
		t.Fatal(err)
	}

	if _, err := m.NewSaver(out+"2", SaveOptions{}); err == nil ||
		!strings.Contains(err.Error(), "tokenizer_extra.json") {
		t.Errorf("a link to nothing: %v", err)
	}
}

// A suspended output continues where it was, for the same job only; an aborted one leaves nothing.
func TestSaveResume(t *testing.T) {
	src := checkpoint(t, 3000)
	m := load(t, src, cpu.New(cpu.Options{}), Options{})
	name := m.Linears(0)[0].Name
	out := filepath.Join(t.TempDir(), "out")
	s := saver(t, m, out, SaveOptions{Resume: true, Fingerprint: "a"})

	if err := negate(m, name); err != nil {
		t.Fatal(err)
	}
	if err := s.Save(name); err != nil {
		t.Fatal(err)
	}
	if _, err := m.NewSaver(out, SaveOptions{Resume: true, Fingerprint: "a"}); err == nil {
		t.Error("two writers at a time")
	}
	if err := s.Suspend(); err != nil {
		t.Fatal(err)
	}

	fresh := load(t, src, cpu.New(cpu.Options{}), Options{})
	if _, err := fresh.NewSaver(out, SaveOptions{Resume: true, Fingerprint: "b"}); !errors.Is(err, ErrOtherJob) ||
		!strings.Contains(err.Error(), "the source or the options have changed") {
		t.Errorf("another job: %v", err)
	}

	if _, err := fresh.NewSaver(out, SaveOptions{Resume: true, Fingerprint: "a", MaxShardSize: 100}); !errors.Is(err,
		ErrOtherJob) {
		t.Errorf("another layout: %v", err)
	}

	journal := filepath.Join(filepath.Dir(out), ".out.partial", "journal.jsonl")
	f, err := os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := f.WriteString(`{"done":["model.norm.wei`); err != nil { // torn by a crash
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}

	s = saver(t, fresh, out, SaveOptions{Resume: true, Fingerprint: "a"})
	if !s.Done(name) || s.Done("model.norm.weight") {
		t.Error("the journal was not read")
	}
	if err := s.LoadDone(name); err != nil {
		t.Fatal(err)
	}
	if err := s.LoadDone("model.norm.weight"); !errors.Is(err, safetensors.ErrIncomplete) {
		t.Errorf("an unfinished tensor: %v", err)
	}

	a, _ := m.Param(name)
	b, err := fresh.Param(name)
	if err != nil || !bytes.Equal(a.Buf.Bytes(), b.Buf.Bytes()) {
		t.Errorf("the finished tensor differs (%v)", err)
	}

	finish(t, s)
	sameTensors(t, m.Source(), out, []string{name})
	s = saver(t, fresh, out+"2", SaveOptions{})
	if err := s.Save(name); err != nil {
		t.Fatal(err)
	}
	if err := s.Abort(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(out)); len(left) != 1 {
		t.Errorf("left after abort: %v", left)
	}
}

// A finished tensor whose bytes changed meanwhile is not taken for done, nor one that stands in a line of the journal
// that changed.
func TestSaveResumeDamaged(t *testing.T) {
	src := checkpoint(t, 3000)
	m := load(t, src, cpu.New(cpu.Options{}), Options{})
	names := []string{m.Linears(0)[0].Name, m.Linears(0)[1].Name, m.Linears(0)[2].Name}
	out := filepath.Join(t.TempDir(), "out")
	options := SaveOptions{Resume: true, Fingerprint: "a"}
	s := saver(t, m, out, options)
	if err := errors.Join(s.Save(names...), s.Suspend()); err != nil {
		t.Fatal(err)
	}

	partial := filepath.Join(filepath.Dir(out), ".out.partial")
	files, err := filepath.Glob(filepath.Join(partial, "*.safetensors.partial"))
	if err != nil {
		t.Fatal(err)
	}

	for _, path := range files {
		if f, err := safetensors.Open(path); err == nil {
			if _, held := f.Info(names[1]); held {
				patch(t, path, names[1])
			}
			f.Close()
		}
	}

	s = saver(t, m, out, options)
	if !s.Done(names[0]) || s.Done(names[1]) || !s.Done(names[2]) || !slices.Equal(s.Damaged(), names[1:2]) {
		t.Errorf("done %v %v %v, damaged %q", s.Done(names[0]), s.Done(names[1]), s.Done(names[2]), s.Damaged())
	}
	if err := s.Suspend(); err != nil {
		t.Fatal(err)
	}

	journal := filepath.Join(partial, "journal.jsonl")
	text, err := os.ReadFile(journal)
	if err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(journal, bytes.ReplaceAll(text, []byte(`"sums"`), []byte(`"none"`)), 0o666); err != nil {
		t.Fatal(err)
	}

	s = saver(t, m, out, options)
	if s.Done(names[0]) || len(s.Damaged()) != 0 {
		t.Errorf("a damaged journal: done %v, damaged %q", s.Done(names[0]), s.Damaged())
	}

	finish(t, s)
	sameTensors(t, m.Source(), out, nil)
}

// The stored head of a tied model follows the token table.
func TestSaveTiedHead(t *testing.T) {
	config := tiny()["llama"]
	config["tie_word_embeddings"] = true
	r := recipe{
		config: config, dtype: safetensors.BF16,
		extra: []safetensors.Info{{Name: "lm_head.weight", DType: safetensors.BF16, Shape: []int64{37, 24}}},
	}
	dir := t.TempDir()
	r.write(t, dir)
	// equal: all zero but for one element
	for _, part := range []string{"model.embed_tokens.weight", "lm_head.weight"} {
		patch(t, filepath.Join(dir, "model.safetensors"), part)
	}

	m := load(t, dir, cpu.New(cpu.Options{}), Options{})
	if slices.Contains(m.Tensors(), "lm_head.weight") {
		t.Error("the repeated head is a parameter")
	}
	if err := negate(m, "model.embed_tokens.weight"); err != nil {
		t.Fatal(err)
	}

	out := filepath.Join(t.TempDir(), "out")
	finish(t, saver(t, m, out, SaveOptions{}))
	load(t, out, cpu.New(cpu.Options{}), Options{})
	sameTensors(t, m.Source(), out, []string{"lm_head.weight", "model.embed_tokens.weight"})
}

// patch fills a BF16 tensor of a file with one pattern.
func patch(t *testing.T, path, name string) {
	t.Helper()
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}

	info, _ := f.Info(name)
	f.Close()
	w, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()

	if _, err := w.WriteAt(bytes.Repeat([]byte{0x80, 0x3f}, int(info.Size/2)), info.Offset); err != nil {
		t.Fatal(err)
	}
}

// saveChild is the program that TestSaveKilled kills: it negates every matrix, saves block by block and says
// what it does.
func saveChild(dir string) error {
	m, err := Load(ctx, filepath.Join(dir, "src"), cpu.New(cpu.Options{Threads: 1}), Options{Stream: true})
	if err != nil {
		return err
	}

	s, err := m.NewSaver(filepath.Join(dir, "out"), SaveOptions{Resume: true, Fingerprint: "job"})
	if err != nil {
		return err
	}

	fmt.Println("open")

	for l := 0; l < m.Blocks() && !s.Complete(); l++ {
		for _, e := range m.Linears(l) {
			if s.Done(e.Name) {
				if err := s.LoadDone(e.Name); err != nil {
					return err
				}
				continue
			}

			if err := negate(m, e.Name); err != nil {
				return err
			}

			fmt.Println("save")
			if err := s.Save(e.Name); err != nil {
				return err
			}

			fmt.Println("saved")
		}

		m.ReleaseBlock(l, true)
	}

	fmt.Println("finish")
	if err := s.Finish(ctx); err != nil {
		return err
	}

	fmt.Println("done")
	return nil
}

// Killed at any of its steps, again and again, the child ends with the bytes that an undisturbed run writes.
func TestSaveKilled(t *testing.T) {
	src := checkpoint(t, 3000)
	run := func(dir string, kill int) (lines []string) {
		t.Helper()
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), "LM_TEST_SAVE="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}

		if err := c.Start(); err != nil {
			t.Fatal(err)
		}

		for in := bufio.NewScanner(out); in.Scan(); {
			if lines = append(lines, in.Text()); len(lines) == kill {
				if err := c.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}

		_ = c.Wait() // killed, or done: the lines tell
		return lines
	}

	fresh := func() string {
		dir := t.TempDir()
		if err := os.CopyFS(filepath.Join(dir, "src"), os.DirFS(src)); err != nil {
			t.Fatal(err)
		}
		return dir
	}

	whole := fresh()
	steps := run(whole, 0)
	if steps[len(steps)-1] != "done" {
		t.Fatalf("the child says %v", steps)
	}

	want := tree(t, filepath.Join(whole, "out"))
	for kill := 1; kill <= len(steps); kill += 3 {
		dir := fresh()
		runs := 0
		for {
			lines := run(dir, kill)
			runs++
			if lines[len(lines)-1] == "done" {
				break
			}

			if runs > len(steps) {
				run(dir, 0) // killed too early each time to get anywhere
				break
			}

			if _, err := os.Stat(filepath.Join(dir, "out")); err == nil && !slices.Contains(lines, "finish") &&
				runs == 1 {
				t.Fatal("the output has its name before it is complete")
			}
		}

		if got := tree(t, filepath.Join(dir, "out")); !maps.Equal(got, want) {
			t.Fatalf("killed at step %d: files differ: %v", kill, got)
		}
		if got := tree(t, filepath.Join(dir, "src")); !maps.Equal(got, tree(t, src)) {
			t.Fatalf("killed at step %d: the source has changed", kill)
		}
	}
}

// Streaming keeps at most a block of the files in memory, whatever their size.
func TestStreamReleasesPages(t *testing.T) {
	if _, err := os.ReadFile("/proc/self/smaps"); err != nil {
		t.Skip("/proc/self/smaps is not there")
	}

	config := maps.Clone(tiny()["llama"])
	config["hidden_size"] = 256
	config["intermediate_size"] = 512
	config["num_hidden_layers"] = 12

	config["head_dim"] = 64
	dir := recipe{config: config, seed: 1}.write(t, t.TempDir())
	m := load(t, dir, cpu.New(cpu.Options{}), Options{Stream: true})

	peak := int64(0)
	r := forward(t, m, tokens(1, 37, 16), ForwardOptions{Hooks: &Hooks{BlockOutput: func(int, kernels.Mat) {
		peak = max(peak, mappedResident(t, dir))
	}}})
	block := m.NumParameters() * 4 / 12
	if math.IsNaN(r.Loss) || peak == 0 || peak > block*3/2 {
		t.Errorf("%d bytes of the files are resident, a block has %d", peak, block)
	}
	if left := mappedResident(t, dir); left > block/2 {
		t.Errorf("%d bytes stay", left)
	}
}

// mappedResident sums the resident bytes of mappings of files in a folder.
func mappedResident(t *testing.T, dir string) int64 {
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}

	var sum int64
	inside := false
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 5 && strings.Contains(f[0], "-") {
			inside = strings.Contains(line, dir)
		}

		var kb int64
		if n, _ := fmt.Sscanf(line, "Rss: %d kB", &kb); n == 1 && inside {
			sum += kb << 10
		}
	}

	return sum
}

// What stands beside the weights is what it was when the model was opened, or there is no output.
func TestChangedSinceOpened(t *testing.T) {
	for what, change := range map[string]func(path string) error{
		"emptied": func(path string) error { return os.Truncate(path, 0) },
		"removed": os.Remove,
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(filepath.Join("..", "testdata", "nano", "base"))); err != nil {
				t.Fatal(err)
			}
			m, err := Load(t.Context(), dir, cpu.New(cpu.Options{}), Options{Stream: true})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()

			if err := change(filepath.Join(dir, "generation_config.json")); err != nil {
				t.Fatal(err)
			}
			out := filepath.Join(t.TempDir(), "out")
			if _, err := m.NewSaver(out, SaveOptions{}); !errors.Is(err, stage.ErrChanged) {
				t.Errorf("error %v", err)
			}
			if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
				t.Error("there is an output")
			}
		})
	}
}

// offline is a device that gives nothing back once it has broken.
type offline struct {
	*accountant
	broken bool
}

var errOffline = errors.New("the device is gone")

func (d *offline) Download(dst []byte, b *kernels.Buffer, off int) error {
	if d.broken {
		return errOffline
	}
	return d.accountant.Download(dst, b, off)
}

// A saver gives the device's memory back with every save, of changed and unchanged tensors, whole and cut, also where
// one fails.
func TestSaveGivesBack(t *testing.T) {
	dir := recipe{config: tiny()["llama"], dtype: safetensors.BF16, seed: 3}.write(t, t.TempDir())
	for name, cut := range map[string]*arch.Cut{"whole": nil, "cut": {Layers: []int{0, 2}}} {
		dev := &offline{accountant: &accountant{Device: cpu.New(cpu.Options{})}}
		m := load(t, dir, dev, Options{})
		names := m.Tensors()
		changed := m.Linears(0)[0].Name
		if err := negate(m, changed); err != nil {
			t.Fatal(err)
		}

		s := saver(t, m, filepath.Join(t.TempDir(), "out"), SaveOptions{DType: safetensors.F16, Cut: cut})
		given := func(what string) {
			for _, b := range dev.live {
				if b.Len > 0 {
					t.Errorf("%s, %s: %d elements of %v are kept", name, what, b.Len, b.DType)
				}
			}
			dev.live, dev.size = nil, nil
		}
		dev.live, dev.size = nil, nil // the model's own
		if err := s.Save(names...); err != nil || len(dev.live) == 0 {
			t.Fatalf("%s: %v, %d buffers", name, err, len(dev.live))
		}
		if n := len(dev.live); n >= len(names) {
			t.Errorf("%s: %d buffers for %d tensors", name, n, len(names))
		}
		given("saved")

		dev.broken = true
		for _, one := range []string{changed, names[0]} {
			if err := s.Save(one); !errors.Is(err, errOffline) {
				t.Errorf("%s: %s: %v", name, one, err)
			}
			given("failed")
		}
		dev.broken = false
		finish(t, s)
		given("finished")
	}
}
