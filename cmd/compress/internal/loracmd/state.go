package loracmd

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

	"github.com/modelcompress/compress/cmd/compress/internal/cli"
	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/internal/stage"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/corpus"
	"github.com/modelcompress/compress/lora"
)

// state is the hidden folder beside the output that an interrupted run goes on from.
func state(out string) string {
	clean := filepath.Clean(out)
	return filepath.Join(filepath.Dir(clean), "."+filepath.Base(clean)+".training")
}

// claim makes the folder of the state, or takes the one that an interrupted run left, and locks it until
// release: two runs would mix their states, and the later one would replace the output of the other. The error
// wraps [stage.ErrBusy] while another run has it.
func claim(dir string) (release func(), err error) {
	lock, err := stage.Lock(dir)
	if err != nil {
		return nil, err
	}

	return func() {
		_ = os.Remove(dir) // where nothing is in it
		_ = lock.Close()
	}, nil
}

// earlier says what becomes of the state of an unfinished run, or that there is none to go on from. Where the run was
// finished before, done is its report.
func (r *run) earlier() (done any, err error) {
	steps, err := lora.Unfinished(r.o.StateDir)
	if err != nil {
		return nil, err
	}

	switch {
	case steps > 0 && !r.o.Resume:
		r.Note("%s: the %d steps of an unfinished run are discarded; --resume would have continued it", r.o.Out, steps)
	case steps == 0 && r.o.Resume:
		text, err := r.finished()
		if err != nil || text != nil {
			return text, err
		}
		r.Note("%s: no unfinished run is there to resume; this one begins with the first step", r.o.Out)
	}

	return nil, nil
}

// indifferent are the flags that say where and how a training is done and shown, not what comes of it.
var indifferent = []string{
	"device", "json", "memory", "out", "overwrite", "quiet", "report", "resume", "save-every",
	"threads", "log-csv", "log-tensorboard",
}

// Inputs are fingerprints of what a training depends on beside its flags, the model's weights and the data's tokens: a
// file may change under its name. The report has the teacher's among its options.
type Inputs struct {
	Labels string `json:"labels"`         // which tokens of the data are learned, and which answers are good ones
	Eval   string `json:"eval,omitempty"` // the sequences to evaluate on
	Init   string `json:"init,omitempty"` // the adapter to begin with
}

// taught is the fingerprint of what data teach by their tokens.
func taught(w corpus.Windows, p *lora.Prefer) string {
	if p == nil {
		return corpus.HashIDs(w.Labels)
	}
	return corpus.HashIDs(slices.Concat(w.Labels, marks(p.Good)))
}

// marks are the marks of answers as one more sequence; none without any.
func marks(good []bool) [][]int32 {
	if good == nil {
		return nil
	}
	row := make([]int32, len(good))
	for i, g := range good {
		if g {
			row[i] = 1
		}
	}
	return [][]int32{row}
}

// result is what is read of a training.json.
type result struct {
	Flags  map[string]json.RawMessage
	Inputs *Inputs `json:"inputs"` // which earlier programs did not record, nor the model's fingerprint
	Report
}

// finished is the report of a training that has come to its end in the place of the output, nil where there is none.
// One with other settings, of another model or on other data is refused: its result would be replaced.
func (r *run) finished() (any, error) {
	path := filepath.Join(r.o.Out, "training.json")
	text, err := safefile.ReadFile(path, maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}

	done := result{Report: Report{Report: &lora.Report{}}}
	if err := json.Unmarshal(text, &done); err != nil {
		return nil, fmt.Errorf("%s: %w (HINT: --overwrite replaces what is there)", path, err)
	}

	differ := append(r.otherFlags(done.Flags), r.otherInputs(&done)...)
	teacher, err := r.otherTeacher(&done)
	if err != nil {
		return nil, err
	}
	if teacher {
		differ = append(differ, "the teacher is another")
	}

	switch {
	case len(differ) > 0:
		return nil, cli.Usagef("--resume: %s holds a finished training with other settings: %s (HINT: --overwrite "+
			"replaces it, another --out keeps both)", r.o.Out, strings.Join(differ, ", "))
	case done.BaseHash == "" || done.Inputs == nil || len(done.Steps) == 0: // whether it is the same is not known
		return nil, nil
	}

	if err := r.readable(); err != nil {
		return nil, fmt.Errorf("--resume: the training in %s was finished, but its result cannot be read: %w (HINT: "+
			"--overwrite trains again)", r.o.Out, err)
	}

	r.done = &done.Report
	r.Printf("%s: this training was finished before; there is nothing to do: %s\n", r.o.Out, r.summary())
	return json.RawMessage(text), errors.Join(os.RemoveAll(r.o.StateDir), remove(spoken(r.o.Out)))
}

// readable returns an error where what a finished training has written cannot be read.
func (r *run) readable() error {
	if r.o.Kind != "full" {
		_, err := lora.Open(r.o.Out, r.model)
		return err
	}
	_, err := lm.Fingerprint(r.Ctx, r.o.Out)
	return err
}

// otherFlags lists the flags with which another result was made.
func (r *run) otherFlags(then map[string]json.RawMessage) (differ []string) {
	for name, value := range r.Flags() {
		var was bytes.Buffer
		now, err := json.Marshal(value)
		if err = errors.Join(err, json.Compact(&was, then[name])); err != nil ||
			slices.Contains(indifferent, name) || bytes.Equal(was.Bytes(), now) {
			continue // also a flag that the earlier program did not have
		}

		differ = append(differ, fmt.Sprintf("--%s is %s there and %s here", name, &was, now))
	}

	slices.Sort(differ)
	return differ
}

// otherInputs lists what has changed under its name since another result was made; what the earlier program did not
// record does not count.
func (r *run) otherInputs(done *result) (differ []string) {
	other := func(was, is, text string) {
		if was != "" && was != is {
			differ = append(differ, text)
		}
	}

	other(done.BaseHash, r.base, "the model's weights are others")
	other(done.Data.Hash, r.data.Hash, "the data's tokens are others")
	if in := done.Inputs; in != nil {
		if done.Data.Hash == r.data.Hash { // other tokens have other labels
			other(in.Labels, r.inputs.Labels, "others of the data's tokens, or of its answers, are learned")
		}
		other(in.Eval, r.inputs.Eval, "the data of --eval are others")
		other(in.Init, r.inputs.Init, "the adapter of --init is another")
	}
	return differ
}

// otherTeacher reports whether another result learned from another teacher than the flags name.
func (r *run) otherTeacher(done *result) (bool, error) {
	t := &r.o.Teaching
	if !t.on() || done.Options.Distil == nil {
		return false, nil
	}

	was := done.Options.Distil.Of
	if t.Model != "" {
		is, err := lm.Fingerprint(r.Ctx, t.Model)
		return err == nil && is != was, err
	}

	cache, err := lora.OpenTeacher(t.Cache)
	if err != nil {
		return false, flags(err)
	}
	is, err := cache.Fingerprint(r.Ctx)
	return err == nil && is != was, errors.Join(err, cache.Close())
}

// maxRecord is the size of a training.json that is looked at.
const maxRecord = 256 << 20
