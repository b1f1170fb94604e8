// Package train is what the training loop drives: the steps of an adapter ([Low]) and of all parameters of a model
// ([Full]), from batches to gradients, clipping and updates, and the files of state ([Folder]) from which an
// interrupted run goes on with the same bits.
package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// ErrOtherRun: the state in the folder belongs to a run with other settings, data or model.
var ErrOtherRun = failure.Others(failure.New("the unfinished run has other settings, data or base",
	"--resume takes the flags, the data and the base that began the run; --overwrite starts over"))

// ErrState: a file of state cannot be used.
var ErrState = errors.New("state of the run")

// ErrTorn: some parameters were updated and others not, so the values are of no use.
var ErrTorn = errors.New("the step was half done")

// Finite refuses a norm or a loss that training cannot go on with.
func Finite(what string, x float64) error {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return fmt.Errorf("%s is %v: %w", what, x, lm.ErrNonFinite)
	}
	return nil
}

// Names within a state file.
const (
	optimiser   = "optimizer."      // before the names of the optimiser's tensors
	progressKey = "progress"        // of the metadata: the run's progress, in JSON
	sumName     = "checksum.sha256" // a tensor of 32 bytes: see [checksum]
)

// entry is a tensor of a state file.
type entry struct {
	name string
	t    safetensors.DType
	len  int
	data func(scratch []byte) ([]byte, error) // may use the scratch, which is as large as the tensor
}

// writeState writes a file of state, which is there completely or not at all.
func writeState(path string, entries []entry, progress any) error {
	text, err := json.Marshal(progress)
	if err != nil {
		return err
	}

	infos := make([]safetensors.Info, len(entries), len(entries)+1)
	for i, e := range entries {
		infos[i] = safetensors.Info{Name: e.name, DType: e.t, Shape: []int64{int64(e.len)}}
	}

	// Last, as it is only known when everything else was written.
	infos = append(infos, safetensors.Info{Name: sumName, DType: safetensors.U8, Shape: []int64{sha256.Size}})
	// Larger elements first, so that every tensor is aligned in the mapped file.
	w, err := safetensors.Create(path, infos, map[string]string{progressKey: string(text)},
		safetensors.Options{Order: safetensors.OrderAligned, Overwrite: true})
	if err != nil {
		return err
	}

	most := 0
	for _, e := range entries {
		most = max(most, e.len*e.t.Bits()/8)
	}

	scratch := make([]byte, most)
	sums := checksum{}
	for _, e := range entries {
		data, err := e.data(scratch[:e.len*e.t.Bits()/8])
		if err == nil {
			sums.add(e.name, e.t, data)
			err = w.WriteTensor(e.name, data)
		}
		if err != nil {
			return errors.Join(err, w.Abort())
		}
	}

	if err = w.WriteTensor(sumName, sums.of(string(text))); err == nil {
		err = w.Finish()
	}
	if err != nil {
		return errors.Join(err, w.Abort())
	}

	return nil
}

// checksum has a line for each tensor of a state: name, type and SHA-256.
type checksum []string

func (c *checksum) add(name string, t safetensors.DType, data []byte) {
	*c = append(*c, fmt.Sprintf("%s %v %x\n", name, t, sha256.Sum256(data)))
}

// of is the SHA-256 of the lines in their order, behind the progress.
func (c checksum) of(progress string) []byte {
	slices.Sort(c)
	sum := sha256.Sum256([]byte(progress + "\n" + strings.Join(c, "")))
	return sum[:]
}

// verify compares a state with its checksum.
func verify(f *safetensors.File) error {
	want := make([]byte, sha256.Size)
	if info, ok := f.Info(sumName); !ok || info.Size != sha256.Size {
		return fmt.Errorf("%w: it has no checksum", ErrState)
	}
	if _, err := f.ReadAt(sumName, want, 0); err != nil {
		return err
	}

	var sums checksum
	for _, n := range f.Names() {
		if n == sumName {
			continue
		}

		// The header is covered too: progress lies there.
		info, _ := f.Info(n)
		if err := f.View(n, func(data []byte) error { sums.add(n, info.DType, data); return nil }); err != nil {
			return err
		}
	}

	if !bytes.Equal(want, sums.of(f.Metadata()[progressKey])) {
		return fmt.Errorf("%w: damaged since it was written", ErrState)
	}

	return nil
}

func f32Entry(name string, x []float32) entry {
	return entry{name, safetensors.F32, len(x), func(data []byte) ([]byte, error) {
		return data, dtype.Encode(data, x, safetensors.F32)
	}}
}

// readState opens a state file, checks that it is what was written, and reads what is in its header.
func readState(path string, progress any) (*safetensors.File, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}

	if err = verify(f); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	if err := json.Unmarshal([]byte(f.Metadata()[progressKey]), progress); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w: %w", path, ErrState, err), f.Close())
	}

	return f, nil
}

// fillFrom reads a tensor of known length.
func fillFrom(f *safetensors.File, name string, dst []float32) error {
	info, ok := f.Info(name)
	if !ok || info.DType != safetensors.F32 || !slices.Equal(info.Shape, []int64{int64(len(dst))}) {
		return fmt.Errorf("%w: tensor %.200q is missing or of another size", ErrState, name)
	}
	return f.View(name, func(data []byte) error { return dtype.Decode(dst, data, info.DType) })
}

// optimizerState reads what the optimiser had.
func optimizerState(f *safetensors.File) (map[string][]float32, error) {
	state := map[string][]float32{}
	for _, n := range f.Names() {
		short, ok := strings.CutPrefix(n, optimiser)
		if !ok {
			continue
		}

		info, _ := f.Info(n)
		x := make([]float32, info.Size/4)
		if err := fillFrom(f, n, x); err != nil {
			return nil, err
		}

		state[short] = x
	}

	return state, nil
}

// optimizerEntries lists the optimiser's state.
func optimizerEntries(state map[string][]float32) []entry {
	var list []entry
	names := make([]string, 0, len(state))
	for n := range state {
		names = append(names, n)
	}

	slices.Sort(names)
	for _, n := range names {
		list = append(list, f32Entry(optimiser+n, state[n]))
	}

	return list
}

// paramEntries lists the values of an adapter's parameters.
func paramEntries(a *adapter.Adapter) []entry {
	var list []entry
	for _, p := range a.Trainable() {
		list = append(list, f32Entry(p.Name, p.Data()))
	}
	return list
}
