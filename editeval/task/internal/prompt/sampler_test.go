package prompt

import (
	"errors"
	"fmt"
	"testing"

	"github.com/modelcompress/compress/internal/pyrandom"
	"github.com/modelcompress/compress/internal/pyvalue"
)

func pool(n int) []*pyvalue.Dict {
	out := make([]*pyvalue.Dict, n)
	for i := range out {
		out[i] = pyvalue.NewDict()
		out[i].Set("n", int64(i))
	}
	return out
}

// What Python's Random(1234) draws, document after document.
func TestDraws(t *testing.T) {
	s := &sampler{pool: pool(7473), rnd: pyrandom.NewRandom(1234), named: "x"}
	for _, want := range []string{"[6374 3610 957 61 742]", "[7462 6610 4769 286 5501]", "[5677 687 806 6279 2905]"} {
		got, err := s.draw(5, s.pool[0])
		if err != nil || fmt.Sprint(got) != want {
			t.Errorf("%v %v, want %s", got, err, want)
		}
	}

	if _, err := s.draw(8000, s.pool[0]); !errors.Is(err, ErrExamples) {
		t.Error(err)
	}
}

// The document itself is never among its examples where it may be in the pool, also if the pool has it several times.
func TestOwnDocument(t *testing.T) {
	docs := pool(6)
	for _, i := range []int{1, 2, 3} {
		docs[i].Set("n", int64(0))
	}

	s := &sampler{pool: docs, own: true, rnd: pyrandom.NewRandom(1), named: "x"}
	for range 50 {
		got, err := s.draw(2, docs[0])
		if err != nil || len(got) != 2 || got[0] < 4 || got[1] < 4 || got[0] == got[1] {
			t.Fatalf("%v %v", got, err)
		}
	}

	s.first = true
	if got, err := s.draw(2, docs[0]); err != nil || fmt.Sprint(got) != "[4 5]" {
		t.Errorf("%v %v", got, err)
	}
	if _, err := s.draw(3, docs[0]); !errors.Is(err, ErrExamples) {
		t.Error(err)
	}
}
