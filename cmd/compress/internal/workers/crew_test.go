package workers

import (
	"context"
	"errors"
	"testing"

	"github.com/modelcompress/compress/internal/jobs"
)

// TestForeignOffers: offers of other kinds and of other builds are refused; what an opener says about its own
// is passed on.
func TestForeignOffers(t *testing.T) {
	w := &Worker{}
	damaged := errors.New("damaged")
	kinds := map[string]Opener{"dig": func(context.Context, *Worker, []byte) (jobs.Handler, func(), error) {
		return nil,
			nil, damaged
	}}

	for _, c := range []struct {
		o    jobs.Offer
		want error
	}{
		{jobs.Offer{Kind: "dance", Contract: "this"}, jobs.ErrRefused},
		{jobs.Offer{Kind: "dig", Contract: "other"}, jobs.ErrRefused},
		{jobs.Offer{Kind: "dig", Contract: "this"}, damaged},
	} {
		if _, _, err := w.open(t.Context(), "this", c.o, nil, kinds); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
