package job

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/internal/weights"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/internal/vocab"
	"github.com/modelcompress/compress/safetensors"
)

// sideLimit bounds small files that are read whole.
const sideLimit = 64 << 20

func readFile(dir, name string) ([]byte, error) { return weights.ReadFile(dir, name, sideLimit) }

// WriteSide writes what an engine needs beside the weights: the configuration, if the donor has one, and the
// tokenizer's files.
func (w *Work) WriteSide(dir string) error {
	donor := w.Folders[w.Plan.Models[w.Plan.Donor]]
	if err := w.writeConfig(donor, dir); err != nil {
		return err
	}
	if w.words == nil {
		return vocab.CopyFiles(donor, dir)
	}
	if err := vocab.CopyOthers(donor, dir); err != nil {
		return err
	}
	return w.words.WriteFiles(dir)
}

// writeConfig writes the donor's configuration with what the merge changes of it.
func (w *Work) writeConfig(donor, dir string) error {
	config, err := readFile(donor, "config.json")
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	if err != nil {
		return err
	}
	if config, err = w.Plan.OutputConfig(config); err != nil {
		return fmt.Errorf("%s: %w", weights.Place(donor, "config.json"), err)
	}

	return output.WriteFile(filepath.Join(dir, "config.json"), config)
}

// Outline writes a folder that looks like the result of the merge, but has zeros for weights, which take no space.
func (w *Work) Outline(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return errors.Join(w.WriteSide(dir), WriteZeros(dir, w.Layout()))
}

// WriteZeros writes model.safetensors with tensors of zeros. The zeros are a hole in the file: they take no
// space on the disk, where its file system has holes.
func WriteZeros(dir string, tensors []safetensors.Info) error {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}

	header, at := map[string]entry{}, int64(0)
	for _, t := range tensors {
		size, err := t.DType.ByteSize(t.Shape)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		header[t.Name] = entry{t.DType.String(), append([]int64{}, t.Shape...), [2]int64{at, at + size}}
		at += size
	}

	text, err := json.Marshal(header)
	if err != nil {
		return err
	}

	for len(text)%8 != 0 {
		text = append(text, ' ')
	}

	f, err := os.Create(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		return err
	}

	w := bufio.NewWriter(f)
	_, _ = w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) // Flush has the error
	_, _ = w.Write(text)

	return errors.Join(w.Flush(), f.Truncate(8+int64(len(text))+at), f.Close())
}
