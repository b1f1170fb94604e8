package prune

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lm/arch"
)

// Override treats some matrices differently from the rest, after the allocation and without changing what the others
// lose. A matrix follows the first override that fits it in all of Match, Roles and Blocks; one that is left without a
// matrix is an error.
type Override struct {
	// regular expression somewhere in the tensor's name; empty: any
	Match  string   `json:"match,omitempty" yaml:"match"`
	Roles  []string `json:"roles,omitempty" yaml:"roles"`   // such as q, k, v, o, gate, up, down; empty: any
	Blocks []int    `json:"blocks,omitempty" yaml:"blocks"` // from 0, or from -1 backwards; empty: any

	// Exactly one of the following.
	Dense    bool     `json:"dense,omitempty" yaml:"dense"`       // left as it is
	Sparsity *float64 `json:"sparsity,omitempty" yaml:"sparsity"` // unstructured, from 0 to less than 1
	Pattern  *Pattern `json:"pattern,omitempty" yaml:"pattern"`   // N:M
}

func (v Override) validate(o Options) error {
	chosen := 0
	for _, set := range []bool{v.Dense, v.Sparsity != nil, v.Pattern != nil} {
		if set {
			chosen++
		}
	}

	if chosen != 1 {
		return fmt.Errorf("%w: want exactly one of dense, sparsity and pattern", ErrOptions)
	}

	// An override for every matrix is what the options are for, and most often a forgotten key.
	if v.Match == "" && len(v.Roles) == 0 && len(v.Blocks) == 0 {
		return fmt.Errorf("%w: it fits every matrix; want match, roles or blocks", ErrOptions)
	}
	if _, err := regexp.Compile(v.Match); err != nil {
		return fmt.Errorf("%w: match: %w", ErrOptions, err)
	}

	for _, r := range v.Roles {
		if !arch.Role(r).Linear() {
			return fmt.Errorf("role %q: %w; known: %s", r, ErrUnknown, listed(linearRoles))
		}
	}

	switch {
	case v.Sparsity != nil && !(*v.Sparsity >= 0 && *v.Sparsity < 1):
		return fmt.Errorf("%w: sparsity %g; want 0 or more and less than 1", ErrOptions, *v.Sparsity)
	case v.Pattern != nil && !v.Pattern.Structured():
		return fmt.Errorf("%w: pattern %s; give a sparsity instead", ErrOptions, v.Pattern)
	// A permutation serves the groups of a pattern.
	case v.Sparsity != nil && o.Permutation != "" && o.Permutation != Identity:
		return fmt.Errorf("%w: a sparsity with permutation %s, which is for patterns N:M", ErrOptions, o.Permutation)
	}

	if v.Pattern != nil {
		return v.Pattern.validate()
	}

	return nil
}

var linearRoles = []arch.Role{
	arch.Q, arch.K, arch.V, arch.QKV, arch.QA, arch.QB, arch.KVA, arch.KVB, arch.O, arch.Gate, arch.Up, arch.GateUp,
	arch.Down, arch.SharedGate, arch.SharedUp, arch.SharedGateUp, arch.SharedDown,
}

// fits reports whether a matrix is meant. match is the compiled expression.
func (v Override) fits(l lm.Linear, blocks int, match *regexp.Regexp) bool {
	return match.MatchString(l.Name) && (len(v.Roles) == 0 || slices.Contains(v.Roles, string(l.Role))) &&
		(len(v.Blocks) == 0 || slices.Contains(v.Blocks, l.Block) || slices.Contains(v.Blocks, l.Block-blocks))
}

// applyOverrides notes for every matrix which override it follows.
func (w *walk) applyOverrides() error {
	for i, v := range w.o.Overrides {
		match := regexp.MustCompile(v.Match)
		found, used := false, false
		for b := range w.m.Blocks() {
			for _, l := range w.m.Linears(b) {
				if v.fits(l, w.m.Blocks(), match) {
					found = true
					if _, taken := w.overrides[l.Name]; !taken {
						w.overrides[l.Name], used = v, true
					}
				}
			}
		}
		if !found {
			return fmt.Errorf("override %d: %w: it fits no matrix of the model", i+1, ErrOptions)
		} else if !used {
			return fmt.Errorf("override %d: %w: those before it fit all its matrices", i+1, ErrOptions)
		}
	}

	return nil
}

// checkPatterns refuses a pattern that is longer than the inputs of a matrix it is for: the only group of a
// neuron would be a short one, and lose another share than the pattern says, or everything.
func (w *walk) checkPatterns() error {
	for b := range w.m.Blocks() {
		for _, l := range w.m.Linears(b) {
			if p := w.plan(l).pattern; p.M > l.In {
				return w.fail(l.Name, fmt.Errorf("%w: pattern %s is longer than its %d inputs", ErrOptions, p, l.In))
			}
		}
	}
	return nil
}
