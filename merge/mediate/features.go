package mediate

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"github.com/modelcompress/compress/internal/safefile"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/mediate/internal/router"
	"github.com/modelcompress/compress/safetensors"
)

// promptLimit is how many prompts of an expert are used at most.
const promptLimit = 1000

// ReadPrompts reads a JSONL file: one JSON string a line, or {"text": …}, or {"prompt": …}; of a thousand at most.
func ReadPrompts(path string) ([]string, error) {
	text, err := readSmall(path)
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
			return nil, fmt.Errorf("%s: line %d: no text, want a JSON string or an object with text or prompt: %w",
				path, n+1, router.ErrPrompts)
		}
		if list = append(list, prompt); len(list) == promptLimit {
			break
		}
	}

	if len(list) == 0 {
		return nil, fmt.Errorf("%s: no prompts in it: %w", path, router.ErrPrompts)
	}

	return list, nil
}

// checkTraining reads a file of prompts, or of features from outside, for whether a router can be trained on
// it: two or more.
func checkTraining(path string, external bool) error {
	var n int
	var err error
	if external {
		var list [][]float64
		list, err = ReadFeatures(path)
		n = len(list)
	} else {
		var list []string
		list, err = ReadPrompts(path)
		n = len(list)
	}
	if err == nil && n < 2 {
		err = fmt.Errorf("%s: %d prompts, a router is trained on 2 or more of every expert: %w", path, n,
			router.ErrPrompts)
	}

	return err
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
	if !ok {
		return nil, fmt.Errorf("%s: no tensor \"features\": %w", path, router.ErrFeature)
	}

	if info.DType != safetensors.F32 || len(info.Shape) != 2 || info.Shape[0] < 1 || info.Shape[1] < 1 ||
		info.Shape[1] > 1<<16 {
		return nil, fmt.Errorf("%s: tensor \"features\" is %s %v, want F32 [n, d] with d of %d at most: %w", path,
			info.DType, info.Shape, 1<<16, router.ErrFeature)
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

// feature is that of a prompt, of length 1: the mean over its tokens of what leaves the last block before the
// final norm (hidden_mean), or of the embeddings (embed_mean); or the last token's part of what leaves the last
// block (hidden_last) or the first one (early_last); or of what leaves the first one the mean and the last token's part
// (early, twice as long). Of a prompt longer than the model's positions the end counts.
func feature(ctx context.Context, m *lm.Model, kind string, ids []int32) ([]float64, error) {
	if len(ids) == 0 {
		return nil, fmt.Errorf("the prompt is empty: %w", router.ErrFeature)
	}

	// The end is what a model would go on from.
	if p := m.Config().MaxPositions; p > 0 && len(ids) > p {
		ids = ids[len(ids)-p:]
	}

	h, err := m.Embed([][]int32{ids})
	if err != nil {
		return nil, err
	}
	defer h.Free()

	blocks, first := depth(kind, m.Blocks(), len(ids))
	for l := range blocks {
		if err := m.RunBlock(ctx, l, h, nil); err != nil {
			return nil, err
		}
	}

	data := make([]byte, 4*(h.X.Rows-first)*h.X.Cols)
	if err := m.Device().Download(data, h.X.Buf, h.X.Off+first*h.X.Cols); err != nil {
		return nil, err
	}

	// In float64: a mean over thousands of tokens would lose small dimensions in float32. The length doesn't
	// matter, it is normalised.
	out, last := make([]float64, h.X.Cols), make([]float64, h.X.Cols)
	for len(data) > 0 {
		for c := range out {
			last[c] = float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*c:])))
			out[c] += last[c]
		}
		data = data[4*len(out):]
	}

	if kind == "early" {
		// Both halves count alike: what the prompt is about, and what it is going to say next.
		if err := errors.Join(router.Normalize(out), router.Normalize(last)); err != nil {
			return nil, err
		}
		out = append(out, last...)
	}

	return out, router.Normalize(out)
}

// depth is how many blocks a kind of feature needs, and the first token that counts.
func depth(kind string, blocks, tokens int) (n, first int) {
	switch kind {
	case "embed_mean":
		return 0, 0
	case "early":
		return min(1, blocks), 0
	case "early_last":
		return min(1, blocks), tokens - 1
	case "hidden_last":
		return blocks, tokens - 1
	}
	return blocks, 0
}

// sideLimit bounds small files that are read whole.
const sideLimit = 64 << 20

// readSmall reads a plain file that must not be large.
func readSmall(path string) ([]byte, error) {
	return safefile.ReadFile(path, sideLimit)
}
