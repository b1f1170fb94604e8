package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/safetensors"
)

// Compute is how a verb computes with the weights of a model.
type Compute struct {
	Fast   bool   // round activations, where that is faster
	Decode bool   // quantised matrices become floats when they are loaded
	KV     string // type of keys and values, as --kv has it; empty: float32
	// Positions is how many have keys and values; 0: all.
	Positions int
}

// PositionsFlag adds the flag of [lm.Options].KVPositions.
func PositionsFlag(cmd *cobra.Command, c *Compute) {
	cmd.Flags().IntVar(&c.Positions, "kv-positions", 0,
		"`N` keep keys and values of N positions: the latest half, and those with most attention (default: all)")
}

// CheckPositions looks at the flag.
func (c Compute) CheckPositions() error {
	if c.Positions != 0 && c.Positions < 8 {
		return Usagef("--kv-positions %d: want 8 or more", c.Positions)
	}
	return nil
}

// kvInt8 is the type of keys and values in 8 bits.
const kvInt8 = "int8"

// KVFlag adds the flag of [lm.Options].KVBits.
func KVFlag(cmd *cobra.Command, c *Compute) {
	cmd.Flags().StringVar(&c.KV, "kv", "f32",
		"`TYPE` what keys and values are kept in: f32, or int8, about a quarter of the memory, slightly less precise")
	OneOf(cmd, "kv", "f32", kvInt8)
}

// ComputeFlags adds the flags of [Compute].
func ComputeFlags(cmd *cobra.Command, c *Compute) {
	cmd.Flags().BoolVar(&c.Fast, "fast", false,
		"round activations: to BF16 where weights are BF16 and the CPU has instructions for that, to 8 bits where "+
			"weights are quantised; slightly less precise")
	DecodeFlag(cmd, &c.Decode)
}

// DecodeFlag adds the flag of [lm.Options].Decode.
func DecodeFlag(cmd *cobra.Command, decode *bool) {
	cmd.Flags().BoolVar(decode, "decode", false,
		"have the matrices of a quantised model as floats in memory, rounded to the type of its other tensors, "+
			"instead of computing with them as they are stored")
}

// Options are those of the model.
func (c Compute) Options() lm.Options {
	o := lm.Options{Decode: c.Decode, KVPositions: c.Positions}
	if c.Fast {
		o.Precision = kernels.Fast
	}
	if c.KV == kvInt8 {
		o.KVBits = 8
	}
	return o
}

// Opened says what the way in which an open model computes differs in from what was asked for. A flag that does nothing
// looks like one that gains nothing, and floats take memory that nobody expects of a quantised model.
func (j *Job) Opened(m *lm.Model, o lm.Options) {
	j.unknownKeys(m.Config())
	r := m.Residence()
	info := m.Device().Info()
	kind, has := "BF16", info.Fast
	if len(r.Kept) > 0 {
		kind, has = "bytes", info.Bytes
	}
	if o.Precision == kernels.Fast && !has && !j.exact {
		j.exact = true
		j.Remark("--fast has no effect: %s has no dot products of %s that are faster than those of F32; "+
			"products are exact", info.Name, kind)
	}
	if o.Precision == kernels.Fast && has && !j.exact && len(r.Kept) == 0 && !holdsBF16(m) {
		j.exact = true
		j.Remark("--fast has no effect on products with the weights, none of which is BF16 or quantised; " +
			"compress convert --dtype bf16 makes a copy that is")
	}

	if len(r.Decoded) > 0 && !o.Decode && !o.Stream && o.Bits == 0 {
		j.Note("weights: %s", r)
	}
}

// holdsBF16 reports whether a matrix of a model is stored in BF16.
func holdsBF16(m *lm.Model) bool {
	return slices.ContainsFunc(m.Tensors(), func(name string) bool {
		info, ok := m.Info(name)
		return ok && info.DType == safetensors.BF16 && len(info.Shape) == 2
	})
}

// unknownKeys says which keys of a model's configuration have no effect: a misspelt one, rope_thet for rope_theta,
// changes every figure without another sign.
func (j *Job) unknownKeys(c *lm.Config) {
	var others []string
	for _, key := range c.Unknown {
		if meant := c.Meant(key); meant != "" {
			j.once(UnknownKey(key, meant))
		} else {
			others = append(others, key)
		}
	}

	switch len(others) {
	case 0:
	case 1:
		j.once(UnknownKey(others[0], ""))
	default:
		j.once(fmt.Sprintf("config.json: these keys are unknown and have no effect: %s", strings.Join(others, ", ")))
	}
}

// once makes a remark that was not made yet: several models of a run may give cause for the same one.
func (j *Job) once(text string) {
	if !slices.Contains(j.remarks, text) {
		j.Remark("%s", text)
	}
}

// UnknownKey is the remark about a key of config.json that has no effect; meant is the one that it may be a
// misspelling of, or "".
func UnknownKey(key, meant string) string {
	text := fmt.Sprintf("config.json: the key %q is unknown and has no effect", key)
	if meant != "" {
		text += fmt.Sprintf("; did you mean %q?", meant)
	}
	return text
}
