package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"

	"github.com/modelcompress/compress/safetensors"
)

// Sum identifies the weights of a checkpoint by names, types, shapes and values, wherever they are stored: SHA-256 over the
// CRC-32C of every tensor. It tells models apart, not forgeries.
func Sum(ctx context.Context, src *safetensors.Dir, e Env) (string, error) {
	h := sha256.New()
	buf := make([]byte, 4<<20)
	done := int64(0)
	for _, name := range src.Names() {
		info, _ := src.Info(name)
		crc := uint32(0)
		for off := int64(0); off < info.Size; off += int64(len(buf)) {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			p := buf[:min(int64(len(buf)), info.Size-off)]
			if _, err := src.ReadAt(name, p, off); err != nil {
				return "", err
			}
			crc = crc32.Update(crc, castagnoli, p)
			done += int64(len(p))
			e.progress("reading", done, src.DataSize())
		}
		fmt.Fprintf(h, "%q %s %v %08x\n", name, info.DType, info.Shape, crc)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Place is an element of a tensor.
type Place struct {
	Tensor  string `json:"tensor"`
	Element string `json:"element"` // its coordinates
}

// NonFinite finds the first NaN or infinity of every tensor that has one, except those that skip names.
func NonFinite(ctx context.Context, src *safetensors.Dir, skip map[string]bool, e Env) ([]Place, error) {
	s, err := newScanner(ctx, e.Device)
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
