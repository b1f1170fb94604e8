package merge

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/tokenizer"
	"github.com/modelcompress/compress/merge/internal/experts"
	"github.com/modelcompress/compress/merge/internal/router"
	"github.com/modelcompress/compress/safetensors"
)

// NeedsDevice tells whether a router is trained on features that a model computes, for which Options.Device has to be there.
func (r Recipe) NeedsDevice() bool {
	for _, d := range r.docs {
		if d.Mediate != nil && len(d.Mediate.Router.Prompts) > 0 && d.Mediate.Router.Features != "external" {
			return true
		}
	}
	return false
}

// promptLimit is how many prompts of an expert are used at most.
const promptLimit = 1000

// promptFile finds a file of prompts: as it is, or else from the recipe.
func (m *mediation) promptFile(path string) string {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && !filepath.IsAbs(path) {
		return filepath.Join(filepath.Dir(m.recipe.path), path)
	}
	return path
}

// checkRouter finds out before the work whether the router can be trained.
func (m *mediation) checkRouter(works bool) error {
	r := m.spec.Router
	if len(r.Prompts) == 0 {
		return nil
	}
	has := map[string]bool{}
	for _, p := range r.Prompts {
		has[p.Expert] = true
		if r.Features == "external" {
			if _, err := ReadFeatures(m.promptFile(p.File)); err != nil {
				return err
			}
		} else if _, err := ReadPrompts(m.promptFile(p.File)); err != nil {
			return err
		}
	}
	for _, name := range m.names {
		if !has[name] {
			return faultyRecipe{fmt.Errorf("%s: router: expert %q has no prompts", m.recipe.path, name)}
		}
	}
	if works && r.Features != "external" && m.o.Device == nil {
		return fmt.Errorf("%s: a router on %s needs a device: %w", m.recipe.path, r.Features, ErrOption)
	}
	return nil
}

// ReadPrompts reads a JSONL file: one JSON string a line, or {"text": …}, or {"prompt": …}; of a thousand at most.
func ReadPrompts(path string) ([]string, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	var list []string
	for n, line := range bytes.Split(text, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		var prompt string
		var record struct {
			Text   string `json:"text"`
			Prompt string `json:"prompt"`
		}
		if line[0] == '"' {
			err = json.Unmarshal(line, &prompt)
		} else if err = json.Unmarshal(line, &record); err == nil {
			if prompt = record.Text; prompt == "" {
				prompt = record.Prompt
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%s: line %d: %w: %w", path, n+1, router.ErrPrompts, err)
		}
		if prompt == "" {
			return nil, fmt.Errorf("%s: line %d: the prompt is empty: %w", path, n+1, router.ErrPrompts)
		}
		if list = append(list, prompt); len(list) == promptLimit {
			break
		}
	}
	if len(list) < 2 {
		return nil, fmt.Errorf("%s: %d prompts, want 2 or more: %w", path, len(list), router.ErrPrompts)
	}
	return list, nil
}

// ReadFeatures reads the tensor "features" [n, d] of a file, F32, a thousand rows at most, and normalises
// them.
func ReadFeatures(path string) ([][]float64, error) {
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, ok := f.Info("features")
	if !ok || info.DType != safetensors.F32 || len(info.Shape) != 2 || info.Shape[0] < 2 || info.Shape[1] < 1 || info.Shape[1] > 1<<16 {
		return nil, fmt.Errorf("%s: tensor \"features\" is %s %v, want F32 [n, d] with n of 2 or more: %w", path, info.DType, info.Shape, router.ErrFeature)
	}
	list := make([][]float64, min(info.Shape[0], promptLimit))
	err = f.View("features", func(data []byte) error {
		for i := range list {
			row := data[4*int64(i)*info.Shape[1]:]
			list[i] = make([]float64, info.Shape[1])
			for k := range list[i] {
				list[i][k] = float64(math.Float32frombits(binary.LittleEndian.Uint32(row[4*k:])))
			}
			if err := router.Normalize(list[i]); err != nil {
				return fmt.Errorf("%s: tensor \"features\", row %d: %w", path, i, err)
			}
		}
		return nil
	})
	return list, err
}

// writeRouter trains the router on the dense model.
func (m *mediation) writeRouter(ctx context.Context, dir, side string) error {
	spec := m.spec.Router
	if len(spec.Prompts) == 0 {
		return nil
	}
	files := map[string]string{}
	for _, p := range spec.Prompts {
		files[p.Expert] = m.promptFile(p.File)
	}
	features, err := m.features(ctx, dir, files)
	if err != nil {
		return err
	}
	counts := map[string]int{}
	for k, name := range m.names {
		counts[name] = len(features[k])
		for _, f := range features[k] {
			if len(f) != len(features[0][0]) {
				return fmt.Errorf("features of %s have %d elements, those of %s %d: %w", name, len(f), m.names[0], len(features[0][0]), router.ErrFeature)
			}
		}
	}
	r, q, err := router.Fit(features, router.Options{Classifier: spec.Classifier, Shrinkage: spec.Shrinkage, Seed: m.o.Seed})
	if err != nil {
		return fmt.Errorf("router: %w", err)
	}
	m.manifest.Router = &experts.Router{
		Features: spec.Features, Classifier: spec.Classifier, Shrinkage: spec.Shrinkage, Dim: r.Dim(), Prompts: counts, HeldOut: q.HeldOut,
		Accuracy: q.Accuracy, LogLoss: q.LogLoss, Temperature: r.Temperature, Outside: r.Outside,
	}
	if q.HeldOut == 0 {
		m.warnings = append(m.warnings, "router: too few prompts to hold some out; it is calibrated on those that it was trained on")
	}
	return r.Save(filepath.Join(side, experts.RouterName))
}

// features gives the features of every member's prompts.
func (m *mediation) features(ctx context.Context, dir string, files map[string]string) ([][][]float64, error) {
	list := make([][][]float64, len(m.names))
	var model *lm.Model
	var tok *tokenizer.Tokenizer
	if m.spec.Router.Features != "external" {
		donor := m.folders[m.plan.Models[m.plan.Donor]]
		if err := m.writeConfig(donor, dir); err != nil { // the engine reads them beside the weights
			return nil, err
		}
		if err := m.writeTokenizer(donor, dir); err != nil {
			return nil, err
		}
		var err error
		if model, err = lm.Load(ctx, dir, m.o.Device, lm.Options{AllowExtra: true}); err != nil {
			return nil, err
		}
		defer model.Close()
		if tok, err = tokenizer.Load(dir); err != nil {
			return nil, err
		}
	}
	for k, name := range m.names {
		if model == nil {
			var err error
			if list[k], err = ReadFeatures(files[name]); err != nil {
				return nil, err
			}
			continue
		}
		prompts, err := ReadPrompts(files[name])
		if err != nil {
			return nil, err
		}
		for _, p := range prompts {
			ids, err := tok.Encode(p, tokenizer.EncodeOptions{})
			if err != nil {
				return nil, err
			}
			f, err := feature(ctx, model, m.spec.Router.Features, ids)
			if err != nil {
				return nil, fmt.Errorf("%s: prompt %.60q: %w", files[name], p, err)
			}
			list[k] = append(list[k], f)
		}
	}
	return list, nil
}

// feature is that of a prompt, of length 1: the mean over its tokens of what leaves the last block before the final norm
// (hidden_mean), or of the embeddings (embed_mean). Of a prompt longer than the model's positions the end counts.
func feature(ctx context.Context, m *lm.Model, kind string, ids []int32) ([]float64, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("the prompt is empty: %w", router.ErrFeature)
	}
	if p := m.Config().MaxPositions; p > 0 && len(ids) > p {
		ids = ids[len(ids)-p:]
	}
	h, err := m.Embed([][]int32{ids})
	if err != nil {
		return nil, err
	}
	defer h.Free()
	for l := 0; l < m.Blocks() && kind == "hidden_mean"; l++ {
		if err := m.RunBlock(ctx, l, h, nil); err != nil {
			return nil, err
		}
	}
	data := make([]byte, 4*h.X.Len())
	if err := m.Device().Download(data, h.X.Buf, h.X.Off); err != nil {
		return nil, err
	}
	out := make([]float64, h.X.Cols)
	for i := range h.X.Rows {
		for c := range out {
			out[c] += float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*(i*h.X.Cols+c):])))
		}
	}
	return out, router.Normalize(out)
}
