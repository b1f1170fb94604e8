package ggufmodel

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/modelcompress/compress/gguf"
	"github.com/modelcompress/compress/internal/orderedjson"
	"github.com/modelcompress/compress/lm/arch"
)

// Tensors that hold factors of rotations, one for each rotated pair.
const (
	ropeFreqs = "rope_freqs.weight"
	ropeLong  = "rope_factors_long.weight"
	ropeShort = "rope_factors_short.weight"
)

// rope writes how positions are rotated.
func (c *configuration) rope() error {
	table := c.arch.Rope
	if table == nil {
		return nil
	}
	if table.Switch != nil {
		if err := c.ropeSwitch(table.Switch.Key); err != nil {
			return err
		}
	}

	base, err := c.number("rope.freq_base", 10000)
	if err != nil {
		return err
	}
	if err := c.rotated(table); err != nil {
		return err
	}

	section, err := c.scaling(base)
	if err != nil {
		return err
	}

	theta := json.RawMessage(decimal(base, true))
	if c.arch.RopeLocal != nil {
		return c.ropeOfBoth(section, theta)
	}

	c.out.Set(table.Theta.Key, theta)
	if section != nil {
		return c.put(&c.out, "rope_scaling", section)
	}

	return nil
}

// ropeSwitch writes whether there is a rotation at all, which files say in a flag.
func (c *configuration) ropeSwitch(key string) error {
	v, ok := c.own("rope.scaling.finetuned")
	on, isBool := v.Bool()
	if ok && !isBool {
		return c.fault(ErrMetadata, c.prefix+"rope.scaling.finetuned", "%v is neither true nor false", v)
	}

	name := "rope"
	if ok && !on {
		name = "nope"
	}
	c.out.Set(key, quote(name))

	return nil
}

// put writes an object as a value.
func (c *configuration) put(to *orderedjson.Object, key string, value *orderedjson.Object) error {
	text, err := value.Compact()
	if err != nil {
		return &Error{File: c.file, Err: ErrMetadata, Detail: err.Error()}
	}
	to.Set(key, text)
	return nil
}

// ropeOfBoth writes the rotations of models whose blocks with a window have one of their own, which is never scaled.
func (c *configuration) ropeOfBoth(section *orderedjson.Object, theta json.RawMessage) error {
	absent, _ := strconv.ParseFloat(string(theta), 64)
	if local := c.arch.RopeLocal.Theta; local.Key != c.arch.Rope.Theta.Key {
		absent, _ = strconv.ParseFloat(string(local.Default), 64)
	}

	base, err := c.number("rope.freq_base_swa", absent)
	if err != nil {
		return err
	}

	full := section
	if full == nil {
		full = &orderedjson.Object{}
		full.Set("rope_type", quote("default"))
	}
	full.Set("rope_theta", theta)

	var sliding, both orderedjson.Object
	sliding.Set("rope_type", quote("default"))
	sliding.Set("rope_theta", json.RawMessage(decimal(base, true)))
	if err := c.put(&both, "full_attention", full); err != nil {
		return err
	}
	if err := c.put(&both, "sliding_attention", &sliding); err != nil {
		return err
	}

	return c.put(&c.out, "rope_parameters", &both)
}

// rotated writes how many channels of a head are rotated, where that is not all of them.
func (c *configuration) rotated(table *arch.RopeKeys) error {
	if table.Dim != nil {
		return nil // a field of its own
	}

	head, err := c.size("head_dim")
	if err != nil {
		return err
	}
	dim, err := c.number("rope.dimension_count", float64(head))
	if err != nil {
		return err
	}

	switch {
	case dim < 2 || dim != math.Trunc(dim) || dim > float64(head):
		return c.fault(ErrMetadata, c.prefix+"rope.dimension_count", "%g of %d channels of a head cannot be rotated",
			dim, head)
	case table.Partial != nil:
		c.out.Set(table.Partial.Key, json.RawMessage(fraction(int64(dim), head)))
	case dim != float64(head):
		return c.fault(ErrRope, c.prefix+"rope.dimension_count", "%g of %d channels, and %s rotates all", dim, head,
			c.arch.ModelType)
	}

	return nil
}

// fraction is a number that, times whole and rounded down, is part again.
func fraction(part, whole int64) string {
	f := float64(part) / float64(whole)
	for int64(float64(whole)*f) < part {
		f = math.Nextafter(f, 2)
	}
	return decimal(f, false)
}

// scaling gives the object that says how frequencies are scaled; nil where they are not.
func (c *configuration) scaling(base float64) (*orderedjson.Object, error) {
	const key = "rope.scaling.type"
	kind := ""
	if v, ok := c.own(key); ok {
		if kind, ok = v.Text(); !ok {
			return nil, c.fault(ErrMetadata, c.prefix+key, "%v is not a string", v)
		}
	}

	_, freqs := c.tensors.info[ropeFreqs]
	_, long := c.tensors.info[ropeLong]
	factor, err := c.factor()
	if err != nil {
		return nil, err
	}
	if kind == "" && factor != 1 {
		kind = "linear"
	}

	switch {
	case long && (kind == "" || kind == "longrope" || kind == "none"):
		return c.longrope()
	case freqs && (kind == "" || kind == "none" || kind == "llama3"):
		return c.llama3(base)
	case long || freqs:
		return nil, c.fault(ErrRope, c.prefix+key, "%q, and the file has tensors with factors too", clip(kind))
	case kind == "" || kind == "none":
		return nil, c.originalLength(nil)
	case kind == "linear":
		s := &orderedjson.Object{}
		s.Set("rope_type", quote(kind))
		s.Set("factor", json.RawMessage(decimal(factor, true)))
		return s, nil
	case kind == "yarn":
		return c.yarn(factor)
	}

	return nil, c.fault(ErrRope, c.prefix+key, "unknown type %q; known: none, linear, yarn, longrope", clip(kind))
}

// factor is by how much positions are stretched.
func (c *configuration) factor() (float64, error) {
	const key = "rope.scaling.factor"
	old, err := c.number("rope.scale_linear", 1)
	if err != nil {
		return 0, err
	}
	factor, err := c.number(key, old)
	if err != nil {
		return 0, err
	}
	if factor < 0 {
		return 0, c.fault(ErrMetadata, c.prefix+key, "%g is not positive", factor)
	}
	if factor == 0 { // as llama.cpp reads it
		factor = 1
	}
	return factor, nil
}

// originalLength writes the length of the original training into the object, or outside of it where the architecture
// has it there.
func (c *configuration) originalLength(s *orderedjson.Object) error {
	const (
		from = "rope.scaling.original_context_length"
		key  = "original_max_position_embeddings"
	)
	n, err := c.number(from, 0)
	if err != nil || n == 0 {
		return err
	}
	if n < 1 || n != math.Trunc(n) || n > 1<<30 {
		return c.fault(ErrMetadata, c.prefix+from, "%g is not a length", n)
	}

	text := json.RawMessage(strconv.FormatInt(int64(n), 10))
	switch {
	case c.arch.Rope.Original != nil:
		c.out.Set(c.arch.Rope.Original.Key, text)
	case s != nil:
		s.Set(key, text)
	}

	return nil
}

// yarn reads the parameters of YaRN.
func (c *configuration) yarn(factor float64) (*orderedjson.Object, error) {
	s := &orderedjson.Object{}
	s.Set("rope_type", quote("yarn"))
	s.Set("factor", json.RawMessage(decimal(factor, true)))
	if err := c.originalLength(s); err != nil {
		return nil, err
	}

	for _, one := range [][2]string{
		{"yarn_beta_fast", "beta_fast"}, {"yarn_beta_slow", "beta_slow"}, {"yarn_attn_factor", "attention_factor"},
	} {
		v, ok := c.own("rope.scaling." + one[0])
		if !ok {
			continue
		}
		text, err := c.json("rope.scaling."+one[0], v)
		if err != nil {
			return nil, err
		}
		s.Set(one[1], text)
	}

	for key, neutral := range map[string][]float64{"yarn_ext_factor": {1, -1}, "attn_factor": {1, 0}} {
		x, err := c.number("rope.scaling."+key, 1)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(neutral, x) {
			return nil, c.fault(ErrRope, c.prefix+"rope.scaling."+key, "%g has no counterpart in a configuration", x)
		}
	}

	if err := c.gain(s); err != nil {
		return nil, err
	}

	for key, value := range c.arch.GGUF.Rope {
		s.Set(key, value)
	}

	return s, nil
}

// gain reads the factor by which YaRN's gain depends on the stretch. Where scores have it too, files hold a tenth.
func (c *configuration) gain(s *orderedjson.Object) error {
	x, err := c.number("rope.scaling.yarn_log_multiplier", 0)
	if err != nil || x == 0 {
		return err
	}

	text := decimal(x, true)
	one := "1.0"
	if c.arch.Rope.ScoreGain {
		text = tenfold(x)
		one = text
	}
	s.Set("mscale", json.RawMessage(one))
	s.Set("mscale_all_dim", json.RawMessage(text))

	return nil
}

// tenfold is the shortest text of the number whose tenth, as a float32, is x.
func tenfold(x float64) string {
	for digits := 1; digits < 9; digits++ {
		text := strconv.FormatFloat(10*x, 'g', digits, 64)
		if y, err := strconv.ParseFloat(text, 64); err == nil && float32(0.1*y) == float32(x) {
			return decimal(y, false)
		}
	}
	return decimal(10*x, false)
}

// longrope reads the factors of LongRoPE, for short and for long texts.
func (c *configuration) longrope() (*orderedjson.Object, error) {
	s := &orderedjson.Object{}
	s.Set("type", quote("longrope"))
	for _, one := range [][2]string{{ropeShort, "short_factor"}, {ropeLong, "long_factor"}} {
		factors, err := c.factors(one[0])
		if err != nil {
			return nil, err
		}
		s.Set(one[1], list(len(factors), func(i int) json.RawMessage {
			return json.RawMessage(decimal(factors[i], true))
		}))
	}
	if err := c.originalLength(s); err != nil {
		return nil, err
	}

	const (
		attn   = "rope.scaling.attn_factor"
		length = "rope.scaling.original_context_length"
	)
	original, err := c.number(length, 0)
	if err != nil {
		return nil, err
	}
	if original < 2 {
		return nil, c.fault(ErrRope, c.prefix+length, "it is missing")
	}

	positions, err := c.size("positions")
	if err != nil {
		return nil, err
	}
	usual := 1.0
	if stretch := float64(positions) / original; stretch > 1 {
		usual = math.Sqrt(1 + math.Log(stretch)/math.Log(original))
	}

	gain, err := c.number(attn, usual)
	if err != nil {
		return nil, err
	}
	if math.Abs(gain-usual) > 1e-6 { // more than float32 rounds off
		s.Set("attention_factor", json.RawMessage(decimal(gain, true)))
	}

	return s, nil
}

// factors reads a tensor with a factor for each rotated pair.
func (c *configuration) factors(name string) ([]float64, error) {
	info, ok := c.tensors.info[name]
	if !ok {
		return nil, &Error{File: c.file, Tensor: name, Err: ErrMissing}
	}

	pairs := info.Cols()
	if info.Type != gguf.F32 || len(info.Shape) != 1 || pairs < 1 || pairs > 1<<19 {
		return nil, &Error{
			File: c.file, Tensor: name, Err: ErrShape,
			Detail: fmt.Sprintf("%v %v is no list of factors in F32", info.Type, info.Shape),
		}
	}

	var list []float64
	err := c.tensors.view(name, func(data []byte) error {
		for i := range pairs {
			x := float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
			if x-x != 0 || x <= 0 {
				return &Error{
					File: c.file, Tensor: name, Err: ErrRope,
					Detail: fmt.Sprintf("factor %d is %g, not positive", i, x),
				}
			}
			list = append(list, x)
		}
		return nil
	})

	return list, err
}

// llama3 finds the parameters of Llama 3's scaling that give the factors of a file. Files have nothing but these; all
// parameters that give them are the same rotation.
func (c *configuration) llama3(base float64) (*orderedjson.Object, error) {
	want, err := c.factors(ropeFreqs)
	if err != nil {
		return nil, err
	}
	positions, err := c.size("positions")
	if err != nil {
		return nil, err
	}

	if slices.Min(want) == 1 && slices.Max(want) == 1 {
		return nil, nil
	}

	r, ok := fit(want, base, int(positions))
	if !ok {
		return nil, &Error{
			File: c.file, Tensor: ropeFreqs, Err: ErrRope,
			Detail: fmt.Sprintf("the %d factors, from %g to %g, are not those of Llama 3's scaling", len(want),
				slices.Min(want), slices.Max(want)),
		}
	}

	s := &orderedjson.Object{}
	s.Set("rope_type", quote("llama3"))
	s.Set("factor", json.RawMessage(decimal(r.Factor, true)))
	s.Set("low_freq_factor", json.RawMessage(decimal(r.LowFreq, true)))
	s.Set("high_freq_factor", json.RawMessage(decimal(r.HighFreq, true)))
	s.Set("original_max_position_embeddings", json.RawMessage(strconv.Itoa(r.Original)))

	return s, nil
}

// fit finds a rotation of Llama 3's kind with given factors: with the parameters that models in circulation have, or
// by solving for them.
func fit(want []float64, base float64, positions int) (*arch.Rope, bool) {
	factors := []float64{slices.Max(want), 8, 32, 4, 16, 2, 64}
	for _, original := range []int{8192, positions, 4096, 32768} {
		for _, factor := range factors {
			r := rotation(want, base, factor, 1, 4, original)
			if gives(r, want) {
				return r, true
			}
		}
	}

	for _, factor := range factors {
		if r := solve(want, base, factor); r != nil && gives(r, want) {
			return r, true
		}
	}

	return nil, false
}

// solve finds parameters by the fact that the inverse of a factor lies on a straight line over the frequency, where it
// is neither 1 nor 1/factor: two such factors determine it, one leaves a choice, as long as those beside it stay
// where they are, and none a larger one.
func solve(want []float64, base, factor float64) *arch.Rope {
	if factor <= 1 {
		return nil
	}

	freq, _ := (&arch.Rope{Type: "default", Dim: 2 * len(want), Theta: base}).InvFreq(0)
	type point struct{ turns, share float64 } // rotations per position, and how much of the frequency is kept
	var between []point
	kept, stretched := -1.0, -1.0 // the slowest one that is kept, the fastest one that is stretched by all of factor
	for i, f := range want {
		turns := freq[i] / (2 * math.Pi)
		switch {
		case f == 1:
			kept = turns
		case f == factor && stretched < 0:
			stretched = turns
		case f != factor:
			between = append(between, point{turns, (1/f - 1/factor) / (1 - 1/factor)})
		}
	}

	var slope, offset float64
	switch n := len(between); {
	case n == 0 && kept > 0 && stretched > 0:
		slope = 1 / (kept - stretched)
		offset = slope * stretched
	case n == 0:
		return nil
	case n == 1:
		p := between[0]
		slope = p.share / p.turns * 2
		if kept > 0 {
			slope = max(slope, (1-p.share)/(kept-p.turns)*1.5)
		}
		if stretched > 0 {
			slope = max(slope, p.share/(p.turns-stretched)*1.5)
		}
		offset = slope*p.turns - p.share
	default:
		p, q := between[0], between[n-1]
		slope = (q.share - p.share) / (q.turns - p.turns)
		offset = slope*p.turns - p.share
	}
	if !(slope > 0 && offset > 0 && slope < math.MaxFloat32) {
		return nil
	}

	// share = (original·turns - low) / (high - low), of which one parameter may be chosen.
	const original = 8192
	low := offset * original / slope
	return rotation(want, base, factor, low, low+original/slope, original)
}

func rotation(want []float64, base, factor, low, high float64, original int) *arch.Rope {
	return &arch.Rope{
		Type: "llama3", Dim: 2 * len(want), Theta: base,
		Factor: factor, LowFreq: low, HighFreq: high, Original: original,
	}
}

// gives reports whether a rotation has the given factors, as float32 arithmetic computes them: a frequency is off by
// some 1e-6 of itself, the power's exponent being rounded before it is multiplied by the logarithm of the base, and an
// inverse near 1/factor makes factor times that of it.
func gives(r *arch.Rope, want []float64) bool {
	plain, _ := (&arch.Rope{Type: "default", Dim: r.Dim, Theta: r.Theta}).InvFreq(0)
	scaled, _ := r.InvFreq(0)
	for i, f := range want {
		if math.Abs(plain[i]/scaled[i]-f) > 2e-6*r.Factor*f {
			return false
		}
	}
	return true
}

// ropeTensor reports whether a tensor holds factors of rotations.
func ropeTensor(name string) bool { return strings.HasPrefix(name, "rope_") }
