package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/modelcompress/compress/safetensors"
)

// shallow copies shipped models with their first decoder layer alone, and the texts beside them: a quarter of the work,
// for tests in which kernels of a GPU run in an imitation. It returns the folder that holds them.
func shallow(t *testing.T, models ...string) string {
	t.Helper()
	home := t.TempDir()
	for _, name := range models {
		if err := firstLayer(filepath.Join("../../testdata/nano", name), filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}

	for _, name := range []string{"text", "train", "edits.json"} {
		path, err := filepath.Abs(filepath.Join("../../testdata/nano", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(home, name)); err != nil {
			t.Fatal(err)
		}
	}

	return home
}

// ofLayer finds the number of the decoder layer in a tensor's name.
var ofLayer = regexp.MustCompile(`\.layers\.(\d+)\.`)

// firstLayer copies a model without the decoder layers behind the first.
func firstLayer(from, to string) error {
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}

	config := filepath.Join(to, "config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		return err
	}

	less := strings.Replace(string(text), `"num_hidden_layers": 4`, `"num_hidden_layers": 1`, 1)
	if less == string(text) {
		return errors.New("the shipped models have no 4 layers any more")
	}
	if err := os.WriteFile(config, []byte(less), 0o666); err != nil {
		return err
	}

	f, err := safetensors.Open(filepath.Join(from, "model.safetensors"))
	if err != nil {
		return err
	}
	defer f.Close()

	var kept []safetensors.Info
	for _, name := range f.Names() {
		if m := ofLayer.FindStringSubmatch(name); m != nil {
			if layer, err := strconv.Atoi(m[1]); err != nil || layer > 0 {
				continue
			}
		}
		info, _ := f.Info(name)
		kept = append(kept, info)
	}

	w, err := safetensors.Create(filepath.Join(to, "model.safetensors"), kept, f.Metadata(),
		safetensors.Options{Overwrite: true})
	if err != nil {
		return err
	}

	for _, info := range kept {
		data, err := f.Bytes(info.Name)
		if err == nil {
			err = w.WriteTensor(info.Name, data)
		}
		if err != nil {
			return err
		}
	}

	return w.Finish()
}
