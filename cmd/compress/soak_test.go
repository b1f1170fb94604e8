package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// Flags of the soak; they stand after -args. Without them it is a few rounds of a few verbs.
var (
	soakFor = flag.Duration("soak", 0, "how long the soak runs verbs round after round")
	soakLog = flag.String("soak-log", "", "file that the samples of the soak are appended to, as lines of JSON")
)

// Work that has a queue.
const (
	searched = "search in/base --calib in/text/calib.txt --heldout in/text/valid.txt --samples 2 --seqlen 32 " +
		"--windows 2 --few 1 --select-windows 2 --test-windows 2 --sparsity 0.6 --population 3 --generations 1 " +
		"--seeds=false --out out/s"
	mergeSearched = "merge search in/open.yaml --data in/text/short.txt --generations 1 --population 4 --seqlen 32 " +
		"--out out/s"
	batch = "eval batch in/batch.yaml --out out/b"
	study = "editeval in/study.yaml --out out/s"
	plan  = "run in/jobs.yaml --out out/r"
)

// queued are the command lines whose work a worker does that stays from round to round. In a process of their own they
// do it themselves; the process of many command lines does without them, for the server of a queue holds 230 kB after
// its end (nats-server 2.15).
var queued = []string{searched, mergeSearched, batch, study, plan}

// soaked are the other command lines of a round. Inputs are below in, which is the folder of the shipped models with
// some files more; what they write is below out, which is emptied before each.
var soaked = []struct {
	args  string
	brief bool   // part of the few rounds
	needs string // a line that makes what this one reads; its output stays, below in
	again string // run after it, in the same folder
}{
	{args: "prune in/base --calib in/text/calib.txt --samples 2 --seqlen 32 --out out/p", brief: true},
	{args: "prune in/base --method sparsegpt --pattern 2:4 --calib in/text/calib.txt --samples 2 --seqlen 32 " +
		"--out out/p"},
	{args: "prune compare in/base --calib in/text/calib.txt --samples 2 --seqlen 32 --ppl in/text/short.txt " +
		"--methods magnitude,gblm,wanda@owl --patterns 0.5,2:4 --keep-models --out out/c"},
	{args: "merge in/ties.yaml --out out/m", brief: true},
	{args: "merge in/mediate.yaml --out out/x", again: "experts verify out/x"},
	{
		args: "lora train in/base --data in/text/short.txt --steps 3 --batch 1 --seqlen 32 --save-every 1 " +
			"--kind mos --equivalent-rank 2 --out out/a",
		brief: true,
	},
	{
		needs: "lora train in/base --data in/text/short.txt --kind lora --rank 2 --steps 1 --batch 1 --seqlen 32 " +
			"--out in/lora",
		args: "lora fold in/base --adapter in/lora --out out/f",
	},
	{args: "eval in/base --tasks in/tasks/base.yaml,in/tasks/subtract.yaml --limit 4 --log-samples --out out/e"},
	{
		args: "edit in/base --edits in/edits.json --method rome --hparams in/rome.yaml --count 2 --texts 0 " +
			"--out out/e",
		again: "edit undo out/e --to 1", brief: true,
	},
	{
		args:  "convert in/base --out out/c --dtype bf16 --max-shard-size 300KB",
		again: "inspect out/c --verify",
	},
	{args: "ppl in/base --data in/text/short.txt --seqlen 32", brief: true},
	{args: "generate in/base --prompt a --max-tokens 8"},
	{args: "tokenize in/base --file in/text/short.txt"},
	{args: "conflict in/ties.yaml"},
}

// soakInputs are the files beside the shipped models.
var soakInputs = map[string]string{
	"ties.yaml": "merge_method: ties\nbase_model: in/base\nmodels:\n" +
		"- {model: in/news, parameters: {weight: 0.5, density: 0.5}}\n" +
		"- {model: in/sums, parameters: {weight: 0.5, density: 0.5}}\n",
	"open.yaml": "merge_method: task_arithmetic\nbase_model: in/base\nmodels:\n" +
		"- {model: in/tales, parameters: {weight: {search: [0, 1]}}}\n" +
		"- {model: in/sums, parameters: {weight: {search: [0, 1]}}}\n",
	"mediate.yaml": "merge_method: mediate\nbase_model: in/base\nmodels:\n- {model: in/news, name: news}\n" +
		"- {model: in/sums, name: sums}\nparameters:\n  select: {top_k: 1}\n" +
		"  router: {prompts: {news: in/tasks/prompts/news.jsonl, sums: in/tasks/prompts/sums.jsonl}}\n",
	"batch.yaml": "models: [in/base, {name: tales, path: in/tales}]\ntasks: [in/tasks/base.yaml]\n" +
		"limit: 2\n" +
		"bootstrap_iters: -1\n",
	"study.yaml": "models: [in/base]\neditors:\n- {method: ft, hparams: {steps: 2}}\nedits: in/edits.json\n" +
		"counts: [1]\nneighborhood: 1\ntasks:\n- {task: in/tasks/base.yaml, limit: 2}\n",
	"rome.yaml": "steps: 3\n",
	"jobs.yaml": "version: 1\njobs:\n  prune:\n    verb: prune\n    args: [in/base]\n" +
		"    flags: {method: magnitude, sparsity: 0.5}\n  look:\n    verb: inspect\n" +
		"    args: [\"${jobs.prune.out}\"]\n",
}

// sample is what one process holds at the end of a round.
type sample struct {
	Who         string  `json:"who"`
	Round       int     `json:"round"`
	Seconds     float64 `json:"seconds"` // since the soak began
	Resident    int     `json:"resident_bytes"`
	Heap        int     `json:"heap_bytes,omitempty"` // alive after a collection
	Goroutines  int     `json:"goroutines,omitempty"`
	Descriptors int     `json:"descriptors"`
	Threads     int     `json:"threads"`
	Folders     int     `json:"folders,omitempty"` // where its temporary files go
}

// inProcess is the command "soaked" of the test program: it runs the command lines that it reads from stdin, one
// JSON list a line, in one process, and answers each with what it holds then.
func inProcess() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	answers := json.NewEncoder(os.Stdout)

	for lines.Scan() {
		var args []string
		if err := json.Unmarshal(lines.Bytes(), &args); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}

		var stderr bytes.Buffer
		a := answer{Code: run(args, io.Discard, &stderr), Stderr: stderr.String()}
		runtime.GC() // what finalizers hold is gone after the second one
		debug.FreeOSMemory()

		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		a.Heap = int(m.HeapAlloc)
		a.Goroutines = runtime.NumGoroutine()
		if err := answers.Encode(a); err != nil {
			os.Exit(1)
		}
	}
}

// answer is what inProcess says after a command line.
type answer struct {
	Code       int
	Stderr     string
	Heap       int
	Goroutines int
}

// TestSoak: processes that live through many runs of many verbs hold no more in the end than after the first few, and
// no run leaves a file that is not its output. A process that runs one command line after another, a worker that
// serves one queue after another, and processes of one command line each take turns.
func TestSoak(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skipf("what a process holds cannot be seen here: %v", err)
	}

	s := newSoak(t)
	rounds := 4
	if *soakFor > 0 {
		rounds = 1 << 30
	}

	for round := 0; round < rounds && (*soakFor == 0 || time.Since(s.began) < *soakFor) && !t.Failed(); round++ {
		s.round(t, round)
	}

	s.judge(t)
}

// soak is a soak that is going on.
type soak struct {
	dir, tmp string
	binary   string
	began    time.Time
	log      io.Writer

	shell   *exec.Cmd // runs command lines in one process
	ask     *json.Encoder
	answers *json.Decoder

	server  *server.Server
	worker  *exec.Cmd
	said    *tail // by the worker
	scratch string

	last    answer            // of the shell
	left    map[string]string // by command line, the files that its first run left, with hashes of weights
	samples map[string][]sample
	runs    int
}

func newSoak(t *testing.T) *soak {
	t.Helper()
	dir := t.TempDir()
	s := &soak{
		dir: filepath.Join(dir, "run"), tmp: filepath.Join(dir, "tmp"), binary: program(t), began: time.Now(),
		log: io.Discard, left: map[string]string{}, samples: map[string][]sample{}, said: &tail{},
	}

	if *soakLog != "" {
		f, err := os.OpenFile(*soakLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		s.log = f
	}

	if err := errors.Join(os.MkdirAll(s.tmp, 0o777), os.MkdirAll(filepath.Join(s.dir, "out"), 0o777),
		os.CopyFS(filepath.Join(s.dir, "in"), os.DirFS("../../testdata/nano"))); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile("../../testdata/nano/text/calib.txt")
	if err != nil {
		t.Fatal(err)
	}

	soakInputs["text/short.txt"] = string(text[:3000])
	for name, text := range soakInputs {
		if err := os.WriteFile(filepath.Join(s.dir, "in", name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}

	s.startShell(t)
	if *soakFor > 0 {
		s.startWorker(t)
	}

	return s
}

func (s *soak) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + s.tmp, "TMPDIR=" + s.tmp}
	return cmd
}

// startShell starts the process that runs one command line after another.
func (s *soak) startShell(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}

	s.shell = s.command(self)
	s.shell.Args[0] = "soaked"
	s.shell.Stderr = os.Stderr
	in, err := s.shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}

	out, err := s.shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}

	s.ask, s.answers = json.NewEncoder(in), json.NewDecoder(out)
	if err := s.shell.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		_ = in.Close()
		if err := s.shell.Wait(); err != nil {
			t.Errorf("the process of many command lines: %v", err)
		}
	})
}

// startWorker starts a cluster and the worker of it.
func (s *soak) startWorker(t *testing.T) {
	t.Helper()
	s.server = natsServer(t, &server.Options{JetStream: true, StoreDir: t.TempDir()})
	s.worker = s.command(s.binary, "worker", "--cluster", s.server.ClientURL(), "--workers", "1", "--threads", "1",
		"--folder", s.dir)
	s.worker.Stderr = s.said
	s.scratch = filepath.Join(s.dir, "..", "worker") // it empties its folders when it hears that a queue is gone
	s.worker.Env = append(s.worker.Env, "TMPDIR="+s.scratch)
	if err := os.Mkdir(s.scratch, 0o777); err != nil {
		t.Fatal(err)
	}

	if err := s.worker.Start(); err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		_ = s.worker.Process.Signal(syscall.SIGTERM)
		err := s.worker.Wait()
		if s.worker.ProcessState.ExitCode() != 130 {
			t.Errorf("the worker: %v: %s", err, s.said)
		}
	})
}

// round runs every command line once in each of the ways.
func (s *soak) round(t *testing.T, round int) {
	t.Helper()
	for _, l := range soaked {
		if *soakFor == 0 && !l.brief {
			continue
		}
		if l.needs != "" && round == 0 {
			s.inShell(t, l.needs)
		}

		s.check(t, l.args, func() { s.inShell(t, l.args, l.again) })
		if *soakFor > 0 {
			s.check(t, l.args, func() { s.asProcess(t, l.args, l.again) })
		}
	}

	s.sample(t, "many command lines in one process", s.shell.Process.Pid, round)

	if s.worker != nil {
		for _, args := range queued {
			s.check(t, args, func() { s.asProcess(t, args+" --workers 1") })
			s.check(t, args, func() { s.asProcess(t, args+" --workers -1 --cluster "+s.server.ClientURL()) })
		}
		t.Run("cluster", func(t *testing.T) { // so that what looks into it closes its connection
			if left := streams(t, s.server); left != "" {
				t.Errorf("round %d: left in the cluster: %s", round, left)
			}
		})
		s.sample(t, "worker of many queues", s.worker.Process.Pid, round)
	}

	s.sample(t, "what starts them", os.Getpid(), round)
}

// inShell runs command lines in the process of many, one after another.
func (s *soak) inShell(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if line == "" {
			continue
		}

		s.runs++
		var a answer
		if err := errors.Join(s.ask.Encode(append(strings.Fields(line), "--threads", "1", "--quiet")),
			s.answers.Decode(&a)); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if a.Code != 0 {
			t.Fatalf("%s: exit code %d: %s", line, a.Code, a.Stderr)
		}
		s.last = a
	}
}

// asProcess runs command lines as processes of their own.
func (s *soak) asProcess(t *testing.T, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if line == "" {
			continue
		}

		s.runs++
		if text, err := s.command(s.binary,
			append(strings.Fields(line), "--threads", "1", "--quiet")...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", line, err, text)
		}
	}
}

// check runs a command line on an empty folder, and asks that it leaves what its first run left.
func (s *soak) check(t *testing.T, line string, do func()) {
	t.Helper()
	out := filepath.Join(s.dir, "out")
	if err := errors.Join(os.RemoveAll(out), os.Mkdir(out, 0o777)); err != nil {
		t.Fatal(err)
	}

	do()

	got := s.files(t, out)
	if first, ok := s.left[line]; !ok {
		s.left[line] = got
	} else if got != first {
		t.Errorf("%s: left\n%sthe first time it was\n%s", line, got, first)
	}
	if rest := s.files(t, s.tmp); rest != "" {
		t.Errorf("%s: left where temporary files go:\n%s", line, rest)
	}
}

// files lists what is in a folder, with hashes of weights.
func (s *soak) files(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}

		name, err := filepath.Rel(dir, path)
		fmt.Fprint(&b, name)
		if filepath.Ext(name) == ".safetensors" {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x", sha256.Sum256(text))
		}

		b.WriteByte('\n')
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	return b.String()
}

// sample notes what a process holds.
func (s *soak) sample(t *testing.T, who string, pid, round int) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("%s: %v: %s", who, err, s.said)
	}

	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}

	x := sample{
		Who: who, Round: round, Seconds: time.Since(s.began).Seconds(), Descriptors: len(open),
		Resident: 1024 * field(t, status, "VmRSS"), Threads: field(t, status, "Threads"),
	}
	if pid == s.shell.Process.Pid {
		x.Heap = s.last.Heap
		x.Goroutines = s.last.Goroutines
	}

	if s.worker != nil && pid == s.worker.Process.Pid {
		folders, err := os.ReadDir(s.scratch)
		if err != nil {
			t.Fatal(err)
		}
		x.Folders = len(folders)
	}

	s.samples[who] = append(s.samples[who], x)
	if err := json.NewEncoder(s.log).Encode(x); err != nil {
		t.Fatal(err)
	}
}

// field is a number of /proc/PID/status.
func field(t *testing.T, status []byte, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + `:\s*(\d+)`).FindSubmatch(status)
	if m == nil {
		t.Fatalf("no %s in %s", name, status)
	}

	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		t.Fatal(err)
	}

	return n
}

// judge asks that the last quarter of the rounds holds what the first quarter after warming up did. Memory may differ
// by what the collector and the system leave to chance.
func (s *soak) judge(t *testing.T) {
	t.Helper()
	for who, list := range s.samples {
		list = list[min(len(list)/4, 3):] // caches and pools are full after a few rounds
		n := max(1, len(list)/4)
		early, late := list[:n], list[len(list)-n:]
		for name, c := range map[string]struct {
			of    func(x sample) int
			slack func(early int) int
		}{
			"resident bytes": {func(x sample) int { return x.Resident }, func(e int) int { return e/5 + 32<<20 }},
			"bytes of heap":  {func(x sample) int { return x.Heap }, func(e int) int { return e/20 + 512<<10 }},
			"goroutines":     {func(x sample) int { return x.Goroutines }, func(int) int { return 0 }},
			// The queue's server, in what starts them, closes a file that nobody has asked for in a while.
			"descriptors": {func(x sample) int { return x.Descriptors }, func(int) int { return 2 }},
			"threads":     {func(x sample) int { return x.Threads }, func(int) int { return 8 }},
			"folders":     {func(x sample) int { return x.Folders }, func(int) int { return 1 }},
		} {
			a, b := median(early, c.of), median(late, c.of)
			t.Logf("%s: %s %d, in the end %d", who, name, a, b)
			if b > a+c.slack(a) {
				t.Errorf("%s: %s grow from %d to %d in %d rounds", who, name, a, b, len(list))
			}
		}
	}

	t.Logf("%d runs in %s", s.runs, time.Since(s.began).Round(time.Second))
}

func median(list []sample, of func(sample) int) int {
	var values []int
	for _, x := range list {
		values = append(values, of(x))
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.text = append(w.text, p...)
	w.text = slices.Clone(w.text[max(0, len(w.text)-4096):])
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.text)
}
