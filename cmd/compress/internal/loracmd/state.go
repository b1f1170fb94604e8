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

// earlier says what becomes of the state of an unfinished run, or that there is none to go on from.
func (r *run) earlier() error {
	steps, err := lora.Unfinished(r.o.StateDir)
	if err != nil {
		return err
	}

	switch {
	case steps > 0 && !r.o.Resume:
		r.Note("%s: the %d steps of an unfinished run are discarded; --resume would have continued it", r.o.Out, steps)
	case steps == 0 && r.o.Resume:
		if err := r.finished(); err != nil {
			return err
		}
		r.Note("%s: no unfinished run is there to resume; this one begins with the first step", r.o.Out)
	}

	return nil
}

// indifferent are the flags that say where and how a training is done and shown, not what comes of it.
var indifferent = []string{
	"device", "json", "memory", "out", "overwrite", "quiet", "report", "resume", "save-every",
	"threads", "log-csv", "log-tensorboard",
}

// finished refuses to begin again where a training with other settings, of another model or on other data has come to
// its end: its result would be replaced.
func (r *run) finished() error {
	text, err := safefile.ReadFile(filepath.Join(r.o.Out, "training.json"), maxRecord)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}

	var done struct {
		Flags map[string]json.RawMessage
		Base  string `json:"base_fingerprint"` // earlier programs did not record it
		Data  struct{ Hash string }
	}
	if err := json.Unmarshal(text, &done); err != nil {
		return fmt.Errorf("%s: %w (HINT: --overwrite replaces what is there)", filepath.Join(r.o.Out, "training.json"),
			err)
	}

	var differ []string
	for name, value := range r.Flags() {
		var was bytes.Buffer
		now, err := json.Marshal(value)
		if err = errors.Join(err, json.Compact(&was, done.Flags[name])); err != nil ||
			slices.Contains(indifferent, name) || bytes.Equal(was.Bytes(), now) {
			continue // also a flag that the earlier program did not have
		}

		differ = append(differ, fmt.Sprintf("--%s is %s there and %s here", name, &was, now))
	}

	slices.Sort(differ)
	if done.Base != "" && done.Base != r.base {
		differ = append(differ, "the model's weights are others")
	}
	if done.Data.Hash != "" && done.Data.Hash != r.data.Hash {
		differ = append(differ, "the data's tokens are others")
	}
	if len(differ) == 0 {
		return nil
	}

	return cli.Usagef("--resume: %s holds a finished training with other settings: %s (HINT: --overwrite replaces "+
		"it, another --out keeps both)",
		r.o.Out, strings.Join(differ, ", "))
}

// maxRecord is the size of a training.json that is looked at.
const maxRecord = 256 << 20
