package cli

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/isa"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/kernels/device"
)

// uses says how verbs use the weights that they read, by their names; those that are not here run the model on
// batches of tokens.
var uses = map[string]device.Use{
	"inspect": device.Once, "inspect diff": device.Once, "convert": device.Once, "merge": device.Once,
	"conflict":       device.Once,
	"experts export": device.Once, "experts verify": device.Once, "lora fold": device.Once, "lora combine": device.Once,
	"lora export": device.Once, "lora inspect": device.Once, "generate": device.Tokens,
}

// checkDisabled looks at the variable that switches instruction sets off: a misspelt name would leave one on.
func checkDisabled() error {
	if err := isa.CheckDisabled(isa.Disabled()); err != nil {
		return Usagef(isa.Variable+": %w", err)
	}
	return nil
}

// Device opens the device that the flags ask for, once. It is closed after the work.
func (j *Job) Device() (kernels.Device, error) {
	if j.dev != nil {
		return j.dev, nil
	}

	threads, err := j.Threads()
	if err != nil {
		return nil, err
	}

	_, verb, _ := strings.Cut(j.verb.CommandPath(), " ")
	dev, err := device.Open(j.device, device.Options{
		Threads: threads, Work: weights(j.Inputs), Use: uses[verb], Note: func(line string) { j.Remark("%s", line) },
	})
	j.dev = dev

	return dev, err
}

// fallBack reports whether the work is to be done again, on the CPU: it failed because of a GPU
// that the program itself has chosen. What was printed until then is not printed again.
func (j *Job) fallBack(err error) bool {
	if err == nil || j.device != "auto" || j.dev == nil || j.dev.Info().Host || j.Ctx.Err() != nil {
		return false
	}
	// What comes through a queue of measurements is a text; then the device is asked whether it is lost.
	if !errors.Is(err, kernels.ErrLost) && !errors.Is(err, kernels.ErrMemory) &&
		!errors.Is(j.dev.Ops().Sync(), kernels.ErrLost) {
		return false
	}

	what, _, _ := strings.Cut(oneLine(err), " (HINT")
	j.Remark("the CPU does the work again from the start: %s", what)
	j.close()
	j.dev, j.device = nil, "cpu"
	j.repeat = j.printed

	// A search refuses a folder that holds one: this is what was begun now.
	flags := j.verb.Flags()
	if again, on := flags.Lookup("overwrite"), flags.Lookup("resume"); again != nil && on != nil &&
		on.Value.String() == "false" {
		_ = again.Value.Set("true") // every text of a truth value is one
	}

	return true
}

// printing is stdout while work may have to be done again.
type printing Job

// Write implements [io.Writer]. Of work that is done again, what is there already is left out; where it comes
// out otherwise, it is all there on a new line.
func (w *printing) Write(p []byte) (int, error) {
	size := len(p)
	if w.repeat == nil {
		w.printed = append(w.printed, p...)
	}

	if n := min(size, len(w.repeat)); n > 0 {
		if bytes.Equal(p[:n], w.repeat[:n]) {
			p, w.repeat = p[n:], w.repeat[n:]
		} else {
			p = slices.Concat(w.printed[:len(w.printed)-len(w.repeat)], p)
			if !bytes.HasSuffix(w.printed, []byte("\n")) {
				p = slices.Concat([]byte("\n"), p)
			}
			w.repeat = w.repeat[:0]
		}
	}

	_, err := w.app.stdout.Write(p)
	return size, err
}
