package prune

import (
	"fmt"
	"strconv"
	"strings"
)

// Pattern says where zeros may lie. The zero Pattern is unstructured; N:M prunes the N lowest of every M consecutive
// inputs. N counts the weights that go, see the package comment.
type Pattern struct{ N, M int }

// Unstructured leaves the place of the zeros to the scores.
const Unstructured = "unstructured"

// ParsePattern reads "unstructured" (or nothing) or "N:M".
func ParsePattern(s string) (Pattern, error) {
	if s == "" || s == Unstructured {
		return Pattern{}, nil
	}

	a, b, ok := strings.Cut(s, ":")
	n, errN := strconv.Atoi(a)
	m, errM := strconv.Atoi(b)
	if !ok || errN != nil || errM != nil {
		return Pattern{}, fmt.Errorf("%w: pattern %q; want %q or N:M, which prunes N of every M inputs, such as 2:4",
			ErrOptions, s, Unstructured)
	}

	p := Pattern{N: n, M: m}
	if p == (Pattern{}) {
		return p, p.fault()
	}

	return p, p.validate()
}

func (p Pattern) validate() error {
	if p == (Pattern{}) || (p.N >= 1 && p.N < p.M && p.M <= maxGroup) {
		return nil
	}
	return p.fault()
}

// maxGroup bounds M: longer groups than any matrix has inputs mean nothing.
const maxGroup = 1 << 16

func (p Pattern) fault() error {
	return fmt.Errorf("%w: pattern %d:%d; want 1 <= N < M <= %d, N of every M inputs are pruned", ErrOptions, p.N, p.M,
		maxGroup)
}

// Structured reports whether the pattern is N:M.
func (p Pattern) Structured() bool { return p.M > 0 }

// Sparsity is N/M, 0 for the unstructured pattern.
func (p Pattern) Sparsity() float64 {
	if !p.Structured() {
		return 0
	}
	return float64(p.N) / float64(p.M)
}

// String writes the pattern as ParsePattern reads it.
func (p Pattern) String() string {
	if !p.Structured() {
		return Unstructured
	}
	return fmt.Sprintf("%d:%d", p.N, p.M)
}

// Meaning says in words what goes.
func (p Pattern) Meaning() string {
	if !p.Structured() {
		return "the lowest scores of a group go"
	}
	return fmt.Sprintf("the %d lowest of every %d consecutive inputs go, %d stay", p.N, p.M, p.M-p.N)
}

// MarshalText makes the pattern a string in JSON.
func (p Pattern) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (p *Pattern) UnmarshalText(text []byte) (err error) {
	*p, err = ParsePattern(string(text))
	return err
}
