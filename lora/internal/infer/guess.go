// Package infer works out the modules of a base from a Mixture of Shards alone: how many blocks there are from
// its lists, sizes from its pools, and paths from the architectures that have such projections.
package infer

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/modelcompress/compress/internal/failure"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm/arch"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/safetensors"
)

// Base is a base of which only the modules are known.
type Base []adapter.Module

// Modules lists the modules.
func (b Base) Modules() []adapter.Module { return b }

// Shapes knows of no parameters.
func (b Base) Shapes() ([]string, map[string][]int64) { return nil, nil }

// Values has none.
func (b Base) Values(name string) (kernels.Mat, error) {
	return kernels.Mat{}, failure.Hinted(fmt.Errorf("%w: tensor %.200q of the base is needed", adapter.ErrUnsupported,
		name), "--model names the base")
}

// place is where an architecture has a kind of projection.
type place struct {
	path       string // template of the module's path
	role       arch.Role
	transposed bool
}

// Modules finds the modules that the pools in a file belong to, and the architectures whose paths they have.
// Where several families of architectures have projections of these names, the one with the most members is
// taken. The error wraps [adapter.ErrUnsupported].
func Modules(f *safetensors.File) (Base, []string, error) {
	types := typesOf(f)
	if len(types) == 0 {
		return nil, nil, fmt.Errorf("%w: there are no pools", adapter.ErrFile)
	}

	places, names := family(types)
	if places == nil {
		return nil, nil, failure.Hinted(fmt.Errorf("%w: no architecture that is known has all of %s",
			adapter.ErrUnsupported, strings.Join(types, ", ")), "--model names the base")
	}

	blocks, sizes, err := measure(f, types)
	if err != nil {
		return nil, nil, err
	}

	var list Base
	for k := range blocks {
		for i, t := range types {
			path := arch.Expand(places[i].path, k, 0)
			list = append(list, adapter.Module{
				Path: path, Tensor: path + ".weight", Block: k, Role: places[i].role, Expert: -1,
				In: sizes[t][0], Out: sizes[t][1], Transposed: places[i].transposed,
			})
		}
	}

	return list, names, nil
}

// typesOf lists the projections that have pools.
func typesOf(f *safetensors.File) []string {
	var types []string
	for _, n := range f.Names() {
		if t, ok := strings.CutSuffix(n, ".pool_A"); ok && strings.HasPrefix(t, "mos.") {
			types = append(types, t[len("mos."):])
		}
	}
	slices.Sort(types)
	return types
}

// family finds the paths that most architectures with all these projections share.
func family(types []string) ([]place, []string) {
	members := map[string][]string{}
	found := map[string][]place{}
	best := ""
	for _, name := range arch.Known() {
		a, err := arch.Lookup(name)
		if err != nil {
			continue
		}

		places := placesOf(a, types)
		if places == nil {
			continue
		}

		key := fmt.Sprint(places)
		found[key] = places
		members[key] = append(members[key], name)
		if len(members[key]) > len(members[best]) {
			best = key
		}
	}

	return found[best], members[best]
}

// placesOf finds projections in an architecture's table; nil if one is missing.
func placesOf(a *arch.Arch, types []string) []place {
	var list []place
	for _, t := range types {
		i := slices.IndexFunc(a.Tensors, func(x arch.Tensor) bool {
			return x.PerBlock() && !x.PerExpert() && x.Part == "" && x.Role.Linear() &&
				strings.HasSuffix(x.Name, "."+t+".weight")
		})

		if i < 0 {
			return nil
		}

		list = append(list,
			place{strings.TrimSuffix(a.Tensors[i].Name, ".weight"), a.Tensors[i].Role, a.Tensors[i].Transposed})
	}

	return list
}

// measure finds the number of blocks and the inputs and outputs of each projection.
func measure(f *safetensors.File, types []string) (blocks int, sizes map[string][2]int, err error) {
	sizes = map[string][2]int{}
	for _, t := range types {
		index, ok := f.Info("mos." + t + ".index_A")
		if !ok || len(index.Shape) != 3 || index.Shape[0] < 1 || index.Shape[0] > math.MaxInt16 || index.Shape[2] < 1 {
			return 0, nil, fmt.Errorf("%w: tensor mos.%.100s.index_A is missing or no list of [blocks, rank, shards]",
				adapter.ErrFile, t)
		}

		if blocks == 0 {
			blocks = int(index.Shape[0])
		}

		if int64(blocks) != index.Shape[0] {
			return 0, nil, fmt.Errorf("%w: %s has lists for %d blocks, %s for %d", adapter.ErrFile, types[0], blocks, t,
				index.Shape[0])
		}

		size := [2]int{}
		for i, side := range []string{"A", "B"} {
			pool, ok := f.Info("mos." + t + ".pool_" + side)
			if !ok || len(pool.Shape) != 2 || pool.Shape[1] > math.MaxInt32 || index.Shape[2] > math.MaxInt16 {
				return 0, nil, fmt.Errorf("%w: tensor mos.%.100s.pool_%s is missing or no matrix", adapter.ErrFile, t,
					side)
			}
			size[i] = int(pool.Shape[1] * index.Shape[2])
		}

		sizes[t] = size
	}

	return blocks, sizes, nil
}
