package arch

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
)

// ropeTypes are the types of scaling that the engine computes.
var ropeTypes = []string{"default", "linear", "dynamic", "llama3", "yarn", "longrope"}

// ropeReader takes values out of the object that holds the rope keys: rope_parameters, or in older files rope_scaling,
// which may be null and leaves the base outside.
type ropeReader struct {
	*configReader
	section string
	keys    map[string]json.RawMessage
	seen    map[string]bool
}

// rope reads the rotation in either spelling.
func (r *configReader) rope(c *Config) {
	table := c.Arch.Rope
	if table == nil || table.Switch != nil && r.text(table.Switch.Key, "") != "rope" {
		r.rotations(c, nil)
		return
	}

	c.Rope = r.ropeOf(c, table, "full_attention")
	var local *Rope
	if c.Arch.RopeLocal != nil {
		local = r.ropeOf(c, c.Arch.RopeLocal, "sliding_attention")
	}
	r.rotations(c, local)

	if table.ScoreGain && c.Rope.MScaleAllDim != 0 && r.err == nil {
		gain := 0.1*c.Rope.MScaleAllDim*math.Log(max(c.Rope.Factor, 1)) + 1
		for l := range c.AttnScales {
			c.AttnScales[l] = float32(float64(c.AttnScales[l]) * gain * gain)
		}
	}
}

// ropeOf reads the rotation of the blocks of a kind, "full_attention" or "sliding_attention".
func (r *configReader) ropeOf(c *Config, table *RopeKeys, kind string) *Rope {
	s := r.openRope(kind)
	p := &Rope{Interleaved: table.Style == "interleaved", MaxPositions: c.MaxPositions}
	if k := table.Interleave; k != nil {
		v, ok := r.keyed(*k)
		p.Interleaved = p.Interleaved && ok && r.boolean(k.Key, v)
	}
	p.Theta = s.either("rope_theta", table.Theta)
	p.Dim = s.dim(c, table)
	p.Type = s.kind(table.Aliases)
	if r.err == nil && (p.Theta <= 0 || p.Theta == 1 && p.Type == "yarn") {
		s.fault("rope_theta", "%g cannot be the base of frequencies", p.Theta)
	}

	s.scaling(p, table)
	s.unknown(c)
	return p
}

// openRope finds the section with the parameters of a kind of block. Architectures with one rotation have one section;
// of the others, older files have one as well, which is that of full attention, and newer ones a section for each kind.
func (r *configReader) openRope(kind string) *ropeReader {
	s := &ropeReader{configReader: r, section: "rope_parameters", seen: map[string]bool{}}
	v, ok := r.get("rope_parameters")
	old, oldOK := r.get("rope_scaling")
	switch {
	case ok && oldOK && string(old) != string(v):
		r.fail("rope_scaling", "the file has rope_parameters too, and they differ")
	case !ok:
		s.section = "rope_scaling"
		v = old
		ok = oldOK
	}
	if ok && json.Unmarshal(v, &s.keys) != nil {
		r.fail(s.section, "%s is not an object", clip(v))
	}

	own, nested := s.keys[kind]
	switch {
	case r.arch.RopeLocal == nil:
		for key, value := range s.keys {
			if strings.HasPrefix(string(value), "{") {
				s.fault(key, "parameters per layer type are not supported")
			}
		}
	case nested:
		s.section += "." + kind
		s.keys = nil
		if json.Unmarshal(own, &s.keys) != nil {
			r.fail(s.section, "%s is not an object", clip(own))
		}
	case kind != "full_attention":
		s.keys = nil
	}

	return s
}

func (s *ropeReader) fault(key, format string, args ...any) {
	s.fail(s.section+"."+key, format, args...)
}

// find gives the value of a key of the section; null counts as absent.
func (s *ropeReader) find(key string) (json.RawMessage, bool) {
	s.seen[key] = true
	v, ok := s.keys[key]
	return v, ok && string(v) != "null"
}

// real reads a number of the section.
func (s *ropeReader) real(key string, absent float64) float64 {
	v, ok := s.find(key)
	if !ok {
		return absent
	}
	x, _ := s.number(s.section+"."+key, v)
	return x
}

// positive reads a number that must be above 0; with absent 0 it must be there.
func (s *ropeReader) positive(key string, absent float64) float64 {
	x := s.real(key, absent)
	if x <= 0 {
		if _, ok := s.find(key); !ok {
			s.fault(key, "is missing")
		}
		s.fault(key, "%g is not positive", x)
	}
	return x
}

// either reads a number that stands in the section, or at the top level as the architecture spells it.
func (s *ropeReader) either(key string, k Key) float64 {
	v, ok := s.keyed(k)
	if inner, found := s.find(key); found {
		if outer, given := s.get(k.Key); given && string(outer) != string(inner) {
			x, _ := s.number(k.Key, outer)
			if y, _ := s.number(s.section+"."+key, inner); x != y {
				s.fault(key, "%s, but %s is %s", clip(inner), k.Key, clip(outer))
			}
		}

		v, ok = inner, true
	}
	if !ok {
		s.fault(key, "is missing")
		return 0
	}

	x, _ := s.number(key, v)
	return x
}

// dim works out how many channels of a head are rotated.
func (s *ropeReader) dim(c *Config, table *RopeKeys) int {
	d, fraction := c.HeadDim, s.real("partial_rotary_factor", 1)
	switch {
	case table.Dim != nil:
		v, _ := s.keyed(*table.Dim)
		if n, err := wholeNumber(v); err == nil {
			d = n
		} else if string(v) != `"head_dim"` {
			s.fail(table.Dim.Key, "%s is not a whole number", clip(v))
		}
	case table.Partial != nil:
		fraction = s.either("partial_rotary_factor", *table.Partial)
		d = 0
		if fraction > 0 && fraction <= 1 {
			d = int(float64(c.HeadDim) * fraction)
		}
	case fraction != 1:
		s.fault("partial_rotary_factor", "%g is not supported for %s", fraction, c.ModelType)
	}

	if d < 2 || d%2 != 0 || d > c.HeadDim {
		s.fault("partial_rotary_factor", "%d of %d channels of a head cannot be rotated", d, c.HeadDim)
	}

	return d
}

// kind reads the type under its new and its old name.
func (s *ropeReader) kind(aliases map[string]string) string {
	name := ""
	for _, key := range []string{"rope_type", "type"} {
		v, ok := s.find(key)
		if !ok {
			continue
		}

		var t string
		if json.Unmarshal(v, &t) != nil {
			s.fault(key, "%s is not a string", clip(v))
			return ""
		}

		if a, ok := aliases[t]; ok {
			t = a
		}
		if name != "" && t != name {
			s.fault(key, "%q, but rope_type is %q", t, name)
		}

		name = t
	}

	if name == "" {
		if _, ok := s.keys["factor"]; ok {
			s.fault("rope_type", "is missing")
		}
		return "default"
	}

	if !slices.Contains(ropeTypes, name) {
		s.fault("rope_type", "unknown type %.60q; known: %s", name, strings.Join(ropeTypes, ", "))
	}

	return name
}

// scaling reads what the type needs.
func (s *ropeReader) scaling(p *Rope, table *RopeKeys) {
	if table.Original != nil {
		s.used[table.Original.Key] = true
	}
	if p.Type == "default" || s.err != nil {
		return
	}

	p.Original = s.original(p, table)
	if p.Type != "longrope" {
		p.Factor = s.positive("factor", 0)
	}

	switch p.Type {
	case "dynamic":
		if p.Dim == 2 || p.Factor < 1 {
			s.fault("factor", "%g cannot stretch %d rotated channels", p.Factor, p.Dim)
		}
	case "llama3":
		p.LowFreq, p.HighFreq = s.positive("low_freq_factor", 0), s.positive("high_freq_factor", 0)
		if s.err == nil && p.HighFreq <= p.LowFreq {
			s.fault("high_freq_factor", "%g is not above low_freq_factor %g", p.HighFreq, p.LowFreq)
		}
	case "yarn":
		p.BetaFast, p.BetaSlow = s.positive("beta_fast", 32), s.positive("beta_slow", 1)
		p.AttentionGain = s.gain()
		p.MScale = s.real("mscale", 0)
		p.MScaleAllDim = s.real("mscale_all_dim", 0)
		p.Truncate = true
		if v, ok := s.find("truncate"); ok {
			p.Truncate = s.boolean(s.section+".truncate", v)
		}
	case "longrope":
		s.long(p)
	}
}

// long reads the factors of LongRoPE.
func (s *ropeReader) long(p *Rope) {
	p.Factor = s.positive("factor", float64(p.MaxPositions)/float64(max(p.Original, 1)))
	p.AttentionGain = s.gain()
	p.ShortFactor, p.LongFactor = s.factors("short_factor", p.Dim/2), s.factors("long_factor", p.Dim/2)
	if s.err == nil && p.Original < 2 {
		s.fault("original_max_position_embeddings", "%d is too short for longrope", p.Original)
	}
}

func (s *ropeReader) gain() float64 {
	g := s.real("attention_factor", 0)
	if _, given := s.keys["attention_factor"]; given && g < 0 {
		s.fault("attention_factor", "%g is not positive", g)
	}
	return g
}

// original reads the length of the original training: from outside of the section where the architecture keeps
// it there.
func (s *ropeReader) original(p *Rope, table *RopeKeys) int {
	key := s.section + ".original_max_position_embeddings"
	v, ok := s.find("original_max_position_embeddings")
	if table.Original != nil {
		if outer, given := s.get(table.Original.Key); given {
			key = table.Original.Key
			v = outer
			ok = true
		}
	}
	if !ok {
		return p.MaxPositions
	}

	n, err := wholeNumber(v)
	if err != nil || n < 1 || n > 1<<30 {
		s.fail(key, "%s is not a length", clip(v))
	}

	return n
}

// factors reads a list of n positive numbers.
func (s *ropeReader) factors(key string, n int) []float64 {
	v, ok := s.find(key)
	var list []float64
	if !ok || json.Unmarshal(v, &list) != nil || len(list) != n {
		s.fault(key, "must be a list of %d numbers, one for each rotated pair", n)
		return nil
	}

	for i, f := range list {
		if f <= 0 {
			s.fault(key, "number %d is %g, not positive", i, f)
		}
	}

	return list
}

// unknown lists the keys of the section that nobody asked for. Keys of other types, such as the betas beside
// "linear", are among them on purpose: they have no effect.
func (s *ropeReader) unknown(c *Config) {
	for key := range s.keys {
		if !s.seen[key] && key != "original_max_position_embeddings" {
			c.Unknown = append(c.Unknown, s.section+"."+key)
		}
	}
	for key := range s.seen {
		if _, there := s.keys[key]; !there {
			c.absent = append(c.absent, s.section+"."+key)
		}
	}
}

func wholeNumber(v json.RawMessage) (int, error) {
	var n int
	err := json.Unmarshal(v, &n)
	return n, err
}
