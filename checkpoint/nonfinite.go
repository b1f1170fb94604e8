package checkpoint

import (
	"context"

	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/safetensors"
)

// Place is an element of a tensor.
type Place struct {
	Tensor  string `json:"tensor"`
	Element string `json:"element"` // its coordinates
}

// NonFinite finds the first NaN or infinity of every tensor that has one, except those that skip names. dev is as in
// [InspectOptions].
func NonFinite(ctx context.Context, src safetensors.Source, skip map[string]bool, dev kernels.Device) ([]Place, error) {
	s, err := newScanner(ctx, dev)
	if err != nil {
		return nil, err
	}

	var found []Place
	for _, name := range src.Names() {
		if skip[name] {
			continue
		}

		info, _ := src.Info(name)
		got, err := s.scan(src, info)
		if err != nil {
			return nil, err
		}

		if got.bad >= 0 {
			found = append(found, Place{name, index(got.bad, info.Shape)})
		}
	}

	return found, nil
}
