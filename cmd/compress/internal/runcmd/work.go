package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/modelcompress/compress/checkpoint"
	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/jobs"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
)

// call is how a job is done. Only the folder says it: what comes over the queue is the job's name and key.
type call struct {
	Job     string   `json:"job"`
	Key     string   `json:"key"`
	Args    []string `json:"args"`    // of the program, without --resume, --overwrite and what only concerns speed
	Files   []string `json:"files"`   // names in the folder that are the job's
	Outputs []string `json:"outputs"` // of these, those that must be there in the end
	Resumes bool     `json:"resumes"` // the verb has --resume
	Threads bool     `json:"threads"` // the number of threads is open
}

// outcome is what became of a job.
type outcome struct {
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Failure string  `json:"failure,omitempty"`
	Resumed bool    `json:"resumed,omitempty"`
	Worker  string  `json:"-"`
}

// States of a job in a report.
const (
	stateDone   = "done"
	stateKept   = "kept"    // done by an earlier run, and nothing has changed
	stateFailed = "failed"  // its program failed
	stateIdle   = "not run" // something that it needs failed, or the run ended before
)

// program runs a command line to its end and returns its exit code; log takes what it prints, held stays open
// as long as it lives.
type program func(ctx context.Context, args []string, log, held *os.File) (code int, err error)

// callFile is where the coordinator leaves how a job is done.
func callFile(dir, job string) string { return filepath.Join(dir, stateFolder, job+".call") }

// write leaves the call in the folder, before its job is handed over.
func (c call) write(dir string) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return cli.WriteFile(callFile(dir, c.Job), text)
}

// readCall reads how a job is done. The job has to be one that is handed over at present, from what it is handed over
// for.
func readCall(dir string, k order) (c call, err error) {
	text, err := safefile.ReadFile(callFile(dir, k.Job), maxCall)
	if err == nil {
		err = jobs.Decode(text, &c)
	}
	if err != nil || c.Job != k.Job || c.Key != k.Key {
		return call{}, fmt.Errorf("%w: the folder of the run has no job %s to be done from this", jobs.ErrItem, k.Job)
	}

	for _, name := range append(slices.Clone(c.Files), c.Outputs...) {
		if !filepath.IsLocal(name) {
			return call{}, fmt.Errorf("%w: job %s writes %q, which is not in its folder", jobs.ErrItem, k.Job, name)
		}
	}

	return c, nil
}

// maxCall bounds a command line.
const maxCall = 64 << 20

// team does jobs.
type team struct {
	dir     string // as it stands in the jobs' arguments
	cwd     string // where that counts from; empty: here
	threads int    // of a job that does not say it
	run     program
	hashes  *hasher
	began   func(job string)
	session func() bool // reports whether the run that handed the jobs over is still the present one
}

// path is the folder, seen from here.
func (t *team) path() string {
	if filepath.IsAbs(t.dir) {
		return t.dir
	}
	return filepath.Join(t.cwd, t.dir)
}

// handle does an item of the queue.
func (t *team) handle(ctx context.Context, item jobs.Item) ([]byte, error) {
	var k order
	if err := jobs.Decode(item.Data, &k); err != nil || !plainName.MatchString(k.Job) || len(k.Job) > maxName*4 {
		return nil, fmt.Errorf("%w: %s", jobs.ErrItem, item.ID)
	}

	c, err := readCall(t.path(), k)
	if err != nil {
		return nil, err
	}

	o, err := t.do(ctx, c)
	if err != nil {
		return nil, err
	}

	return json.Marshal(o)
}

// errOld: a job of a run that another one has replaced.
var errOld = errors.New("the job is of an earlier run")

// do brings a job to its end, from wherever an earlier run has left it.
func (t *team) do(ctx context.Context, c call) (*outcome, error) {
	dir := t.path()
	lock, err := hold(ctx, dir, c.Job)
	if err != nil {
		return nil, err
	}
	defer lock.Close()

	if !t.session() {
		return nil, errOld
	}

	rec := readRecord(dir, c.Job)
	if rec.isDone(ctx, t.hashes, dir, c.Key) {
		return &outcome{State: stateKept, Seconds: rec.Seconds}, nil
	}

	half, err := t.prepare(dir, c, rec)
	if err != nil {
		return nil, err
	}

	next := &record{Job: c.Job, Key: c.Key, Files: c.Files}
	if rec != nil {
		next.Seconds = rec.Seconds
	}
	if err := next.write(dir); err != nil {
		return nil, err
	}

	t.began(c.Job)
	o := &outcome{State: stateDone, Resumed: half}
	begin := time.Now()

	if half && stage.IsReport(filepath.Join(dir, reportName(c.Job))) {
		// The report is the last thing that a program writes: only the end of its run was not seen.
	} else if o.Failure, err = t.attempts(ctx, dir, c, half, lock); err != nil {
		return nil, err
	}

	o.Seconds = time.Since(begin).Seconds()

	if o.Failure != "" {
		o.State = stateFailed
		return o, nil
	}

	if next.Outputs, err = contents(ctx, t.hashes, dir, c.Outputs); err != nil {
		o.State, o.Failure = stateFailed, fmt.Sprintf("it ended without an error, but %v", err)
		return o, ctx.Err()
	}

	next.Done, next.Seconds = true, o.Seconds
	return o, next.write(dir)
}

// isDone reports whether a job was done with a key, and its outputs are as they were then.
func (r *record) isDone(ctx context.Context, h *hasher, dir, key string) bool {
	if r == nil || !r.Done || r.Key != key {
		return false
	}
	for name, id := range r.Outputs {
		if now, err := h.identity(ctx, filepath.Join(dir, name), true); err != nil || now != id {
			return false
		}
	}
	return true
}

// prepare makes way for a job. It reports whether the job was begun with the same key, so that it may be
// continued; what is left of another one is removed.
func (t *team) prepare(dir string, c call, rec *record) (half bool, err error) {
	if rec != nil && !rec.Done && rec.Key == c.Key {
		return true, nil
	}
	if rec != nil {
		return false, errors.Join(sweep(dir, rec.Files), sweep(dir, c.Files), remove(dir, logName(c.Job)))
	}

	for _, name := range c.Files {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return false, fmt.Errorf("%w: %s is there, and not from this run (HINT: move it away, or rename the job)",
				checkpoint.ErrTarget, filepath.Join(dir, name))
		}
	}

	return false, nil
}

// attempts runs the program of a job. What was begun is continued by the verb's own means; where it has none,
// or refuses, the job begins anew.
func (t *team) attempts(ctx context.Context, dir string, c call, half bool, held *os.File) (failure string, err error) {
	begun := half && c.Resumes &&
		(len(leftovers(dir, c.Files)) > 0 || slices.ContainsFunc(c.Outputs, func(n string) bool {
			return !missing(
				filepath.Join(dir, n))
		}))

	if begun {
		code, failure, err := t.attempt(ctx, dir, c, held, "--resume")
		if err != nil || code != exitUsage {
			return failure, err
		}
	}

	if half {
		if err := sweep(dir, c.Files); err != nil {
			return "", err
		}
	}

	_, failure, err = t.attempt(ctx, dir, c, held)
	return failure, err
}

const exitUsage = 2

// attempt runs the program once, with further flags behind the verb's words.
func (t *team) attempt(ctx context.Context, dir string, c call, held *os.File,
	more ...string,
) (code int, failure string, err error) {
	log, err := os.OpenFile(filepath.Join(dir, logName(c.Job)), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o666)
	if err != nil {
		return 0, "", err
	}
	defer log.Close()

	if t.threads > 0 && c.Threads {
		more = append(more, fmt.Sprintf("--threads=%d", t.threads))
	}

	i := slices.IndexFunc(c.Args, func(a string) bool { return strings.HasPrefix(a, "--") })
	if i < 0 {
		i = len(c.Args)
	}

	args := slices.Concat(c.Args[:i], more, c.Args[i:])
	fmt.Fprintf(log, "$ compress %s\n", cli.ShellLine(args))
	st, err := log.Stat()
	if err != nil {
		return 0, "", err
	}

	code, err = t.run(ctx, args, log, held)
	if ctx.Err() != nil {
		return code, "", ctx.Err()
	}
	if err == nil && code == 0 {
		return 0, "", nil
	}

	return code, t.reason(log, st.Size(), code, err), nil
}

// reason says why a program failed: its last line, which is its error, or how it ended.
func (t *team) reason(log *os.File, from int64, code int, err error) string {
	st, statErr := log.Stat()
	if statErr == nil {
		from = max(from, st.Size()-8192)
		text, readErr := io.ReadAll(io.NewSectionReader(log, from, st.Size()-from))
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if last := strings.TrimSpace(lines[len(lines)-1]); readErr == nil && strings.HasPrefix(last, "compress") {
			return last
		}
	}

	if err != nil {
		return err.Error()
	}

	return fmt.Sprintf("ended with exit code %d", code)
}

// patience is what an interrupted program may take to keep its state.
const patience = 30 * time.Second

// child runs this very program as a process of its own, so that its memory, its crashes and its interruption
// are its own. It dies with the runner. cwd is its working directory; empty: this one.
func child(cwd string) program {
	return func(ctx context.Context, args []string, log, held *os.File) (int, error) {
		self, err := os.Executable()
		if err != nil {
			return 0, err
		}

		runtime.LockOSThread() // the death signal is that of the thread which started the process
		defer runtime.UnlockOSThread()

		cmd := exec.CommandContext(ctx, self, args...)
		cmd.Args[0] = os.Args[0]
		cmd.Dir = cwd
		cmd.Stdout = log

		cmd.Stderr = log
		tie(cmd, held)

		cmd.Cancel = func() error { return interrupt(cmd.Process) }
		cmd.WaitDelay = patience
		err = cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			return 0, err
		}

		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return -1, fmt.Errorf("was ended by the signal %v (HINT: the same command continues it; if memory was "+
				"short, fewer --workers)", status.Signal())
		}

		return exit.ExitCode(), nil
	}
}

// describe makes the call of a job.
func (j *job) describe(dir, key string) call {
	c := call{Job: j.name, Key: key, Args: j.arguments(dir), Resumes: j.resumes, Threads: !j.flags["threads"]}
	if j.out != "" {
		c.Outputs = append(c.Outputs, j.out)
	}
	c.Outputs = append(c.Outputs, j.extra...)
	c.Files = append(slices.Clone(c.Outputs), reportName(j.name))
	return c
}

// keyOf is a hash of all that a job's outputs depend on: the program's version, the command line but for what
// only concerns speed, the document it reads, and the content of all inputs.
func keyOf(ctx context.Context, h *hasher, j *job, dir, version string) (string, error) {
	var inputs [][2]string
	texts := append(slices.Clone(j.named), j.inputs...)
	own := append(j.files(), j.extra...)
	for _, path := range named(texts, dir) {
		if rel, err := filepath.Rel(dir, path); err == nil && slices.Contains(own, rel) {
			continue
		}

		id, err := h.identity(ctx, path, j.verb == "report")
		if err != nil {
			return "", fmt.Errorf("job %s: %w", j.name, err)
		}

		name := path
		if rel, ok := strings.CutPrefix(path, dir+"/"); ok {
			name = inFolder(rel)
		}

		inputs = append(inputs, [2]string{name, id})
	}

	for _, text := range j.inputs {
		if missing(at(dir, text)) {
			return "", fmt.Errorf("job %s: there is no %s, which inputs names", j.name, at(dir, text))
		}
	}

	var call []string
	for _, a := range j.call {
		if !strings.HasPrefix(a, "--threads=") && !strings.HasPrefix(a, "--quiet=") {
			call = append(call, a)
		}
	}

	return cli.Fingerprint(version, call, string(j.document("${dir}")), j.out, inputs), nil
}
