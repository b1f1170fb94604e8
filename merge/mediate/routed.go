package mediate

import (
	"container/list"
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"

	"github.com/modelcompress/compress/internal/dtype"
	"github.com/modelcompress/compress/internal/mmapsafe"
	"github.com/modelcompress/compress/kernels"
	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/merge/internal/output"
	"github.com/modelcompress/compress/merge/mediate/internal/experts"
	"github.com/modelcompress/compress/merge/mediate/internal/router"
)

// DefaultCache is how many bytes of materialised experts a Routed keeps beyond those in use, unless told otherwise.
const DefaultCache = 1 << 30

// quanta is the number of steps from 0 to 1 that weights are rounded to.
const quanta = 64

// Routed is a mediated model that computes with experts. Where the cache has room for two sets of whole
// tensors, these are made once for every set of weights and then change places with the dense model's, without
// a copy; otherwise weights are changed in place, on the elements that experts keep, and put back exactly. It
// is used by one goroutine at a time, and no pass may run while weights change.
type Routed struct {
	e     *Experts
	m     *lm.Model
	now   *set   // applied; nil: the dense model
	leave func() // ends a mixed pass; nil: there is none
	sets  map[string]*list.Element
	order *list.List // of sets, the latest used first
	bytes int64
	limit int64
	total int64             // bytes of the tensors that experts change
	swaps bool              // whole tensors change places
	hosts map[string][]byte // of tensors on devices whose memory cannot be written directly
	stats RoutedStatistics
}

// RoutedStatistics count what a Routed did.
type RoutedStatistics struct {
	Switches int64 `json:"switches"` // changes of the weights
	Hits     int64 `json:"hits"`     // of these, to weights that were in the cache
	Bytes    int64 `json:"cached_bytes"`
}

// set is the elements that some weights change, with their values.
type set struct {
	key     string
	tensors []changed
	bytes   int64
}

// changed is what weights change of a tensor: the whole tensor, or the changed elements in ascending order.
type changed struct {
	name   string
	width  int
	whole  *kernels.Buffer // while it is in use, the dense tensor
	at     []uint32
	values []byte
}

// Attach lets the experts act on the dense model, which was loaded from the same folder. cache bounds the memory for
// materialised weights in bytes, beyond those in use; 0: DefaultCache, or less for experts that change little.
func (e *Experts) Attach(m *lm.Model, cache int64) (*Routed, error) {
	if cache < 0 {
		return nil, fmt.Errorf("cache of %d bytes: %w", cache, output.ErrOption)
	}

	var total int64
	for _, name := range e.manifest.Routed {
		info, ok := m.Info(name)
		own, _ := e.dense.Info(name)
		if !ok || info.DType != own.DType || !slices.Equal(info.Shape, own.Shape) {
			return nil, fmt.Errorf("%s: tensor %q is not the model's: %w", e.dir, name, experts.ErrExpert)
		}

		// Places of changed elements are kept in 32 bits.
		if own.Elements() > math.MaxUint32 {
			return nil, fmt.Errorf("%s: tensor %q: %w", e.dir, name, experts.ErrSize)
		}

		total += own.Size
	}

	// Of small models every expert and as many mixtures of them have room in less.
	if cache == 0 {
		cache = min(DefaultCache, 2*int64(1+len(e.members))*total)
	}
	return &Routed{
		e: e, m: m, sets: map[string]*list.Element{}, order: list.New(), limit: cache, total: total,
		swaps: total <= cache/2, hosts: map[string][]byte{}, // two sets have room
	}, nil
}

// MemorySize is the most bytes that weights take which were made of the experts: those in use, and the cache.
func (r *Routed) MemorySize() int64 { return r.total + r.limit }

// Statistics counts what happened so far.
func (r *Routed) Statistics() RoutedStatistics {
	s := r.stats
	s.Bytes = r.bytes
	return s
}

// quantise rounds weights to 64ths, so that near ones share a place in the cache; weights that sum to 1 still do.
func quantise(weights []float64) []float64 {
	out := make([]float64, len(weights))
	sum, total := 0.0, 0.0
	for i, w := range weights {
		out[i] = math.Round(w*quanta) / quanta
		sum, total = sum+out[i], total+w
	}

	if math.Abs(total-1) > 1e-9 {
		return out
	}

	for sum != 1 { // the weight that rounding moved most takes the difference
		step := math.Copysign(1.0/quanta, 1-sum)
		at := 0
		for i := range out {
			if (weights[i]-out[i])*step > (weights[at]-out[at])*step {
				at = i
			}
		}

		out[at] += step
		sum += step
	}

	return out
}

// Route decides about a prompt, with the features of the dense model; experts that are in use are put aside for
// it. The weights are quantised.
func (r *Routed) Route(ctx context.Context, ids []int32, p Policy) ([]float64, Verdict, error) {
	if r.e.router == nil {
		return nil, Verdict{}, fmt.Errorf("%s: %w", r.e.dir, ErrNoRouter)
	}

	kind := r.e.manifest.Router.Features
	if kind == "external" {
		return nil, Verdict{}, fmt.Errorf("%s: its router takes features from outside, not prompts: %w", r.e.dir,
			ErrExternal)
	}

	if kind != "embed_mean" || r.e.manifest.Embeddings() {
		if err := r.Use(nil); err != nil {
			return nil, Verdict{}, err
		}
	}

	f, err := feature(ctx, r.m, kind, ids)
	if err != nil {
		return nil, Verdict{}, err
	}

	return r.e.judge(f, ids, p)
}

// judge turns a feature of length 1 into weights; ids are the prompt's, if there is one.
func (e *Experts) judge(f []float64, ids []int32, p Policy) ([]float64, Verdict, error) {
	if err := p.Validate(); err != nil {
		return nil, Verdict{}, err
	}

	if ids == nil && e.router.Classifier == router.Nearest {
		return nil, Verdict{}, fmt.Errorf("%s: its router compares prompts, and takes no features from outside: %w",
			e.dir, router.ErrFeature)
	}

	probability, energy, distance, err := e.router.JudgePrompt(f, ids)
	if err != nil {
		return nil, Verdict{}, err
	}

	v := Verdict{
		P: probability, Uncertainty: uncertain(probability), Energy: energy, Distance: distance,
		Outside: distance > e.router.Outside,
	}
	return quantise(p.Weights(v)), v, nil
}

// Judge routes by a feature that was computed elsewhere; it is normalised here.
func (e *Experts) Judge(feature []float64, p Policy) ([]float64, Verdict, error) {
	if e.router == nil {
		return nil, Verdict{}, fmt.Errorf("%s: %w", e.dir, ErrNoRouter)
	}
	f := slices.Clone(feature)
	if err := router.Normalize(f); err != nil {
		return nil, Verdict{}, err
	}
	return e.judge(f, nil, p)
}

// Use makes the model compute with weights of the experts, in the order of Names; nil, or nothing but zeros, is
// the dense model.
func (r *Routed) Use(weights []float64) error {
	if weights == nil || !slices.ContainsFunc(weights, func(w float64) bool { return w != 0 }) {
		return r.undo()
	}
	if len(weights) != len(r.e.members) {
		return fmt.Errorf("%d weights for %d experts: %w", len(weights), len(r.e.members), output.ErrOption)
	}

	key := fmt.Sprint(weights)
	if r.now != nil && r.now.key == key {
		return nil
	}

	s, err := r.set(key, weights)
	if err != nil {
		return err
	}

	if err := r.undo(); err != nil {
		return err
	}

	r.stats.Switches++
	if r.swaps {
		if err := r.exchange(s); err != nil {
			return err
		}
		r.now = s
		return nil
	}

	r.now = s // from here on undo puts everything back, also what was not yet changed
	return r.each(s, func(c *changed, data []byte) error {
		c.scatter(data)
		return nil
	})
}

// Undo puts the dense model back, bit for bit.
func (r *Routed) Undo() error { return r.undo() }

func (r *Routed) undo() error {
	if r.leave != nil {
		r.leave()
	}
	if r.now == nil {
		return nil
	}

	s := r.now
	if r.swaps {
		r.now = nil
		return r.exchange(s)
	}

	// Putting back twice does no harm, so after an error the set stays and a later call finishes the work.
	err := r.each(s, func(c *changed, data []byte) error {
		dense, err := r.e.dense.Bytes(c.name)
		if err != nil {
			return err
		}
		c.restore(data, dense)
		return nil
	})
	if err == nil {
		r.now = nil
	}

	return err
}

// exchange lets the tensors of a set change places with the model's.
func (r *Routed) exchange(s *set) error {
	values, err := r.values(s)
	if err != nil {
		return err
	}
	for i, v := range values {
		v.Buf.Exchange(s.tensors[i].whole)
	}
	return nil
}

// values are the model's own matrices of the tensors of a set.
func (r *Routed) values(s *set) (list []kernels.Mat, err error) {
	list = make([]kernels.Mat, len(s.tensors))
	for i := range s.tensors {
		if list[i], err = r.m.MutableParam(s.tensors[i].name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// scatter writes the values.
func (c *changed) scatter(data []byte) {
	switch c.width {
	case 2:
		for k, i := range c.at {
			*(*[2]byte)(data[2*int(i):]) = *(*[2]byte)(c.values[2*k:])
		}
	case 4:
		for k, i := range c.at {
			*(*[4]byte)(data[4*int(i):]) = *(*[4]byte)(c.values[4*k:])
		}
	}
}

// restore copies the elements from the dense tensor.
func (c *changed) restore(data, dense []byte) {
	switch c.width {
	case 2:
		for _, i := range c.at {
			*(*[2]byte)(data[2*int(i):]) = *(*[2]byte)(dense[2*int(i):])
		}
	case 4:
		for _, i := range c.at {
			*(*[4]byte)(data[4*int(i):]) = *(*[4]byte)(dense[4*int(i):])
		}
	}
}

// each runs f on the memory of every tensor of a set, several at a time.
func (r *Routed) each(s *set, f func(c *changed, data []byte) error) error {
	values, err := r.values(s)
	if err != nil {
		return err
	}

	host := r.m.Device().Info().Host
	g := mmapsafe.NewErrors()
	g.SetLimit(runtime.GOMAXPROCS(0))

	for i := range s.tensors {
		c, v := &s.tensors[i], values[i]
		if host {
			g.Go(func() error {
				// The device may have packed the matrix for its kernels; that copy is of the old values.
				defer v.Buf.Changed()
				return f(c, v.Buf.Bytes()[v.Off*c.width:(v.Off+v.Len())*c.width])
			})
			continue
		}

		if err := r.remote(c, v, f); err != nil {
			return err
		}
	}

	return g.Wait()
}

// remote changes a copy in ordinary memory and uploads it.
func (r *Routed) remote(c *changed, v kernels.Mat, f func(c *changed, data []byte) error) error {
	data := r.hosts[c.name]
	if data == nil {
		data = make([]byte, v.Len()*c.width)
		if err := r.m.Device().Download(data, v.Buf, v.Off); err != nil {
			return err
		}
		r.hosts[c.name] = data
	}

	if err := f(c, data); err != nil {
		return err
	}
	defer v.Buf.Changed()

	return r.m.Device().Upload(v.Buf, v.Off, data)
}

// set finds or makes what weights change.
func (r *Routed) set(key string, weights []float64) (*set, error) {
	if at := r.sets[key]; at != nil {
		r.order.MoveToFront(at)
		r.stats.Hits++
		return at.Value.(*set), nil
	}

	s, err := r.make(key, weights)
	if err != nil {
		return nil, err
	}

	r.sets[key] = r.order.PushFront(s)

	for r.bytes += s.bytes; r.bytes > r.limit && r.order.Len() > 1; {
		at := r.order.Back()
		if at.Value.(*set) == r.now { // its buffers hold the dense model
			if at = at.Prev(); at == r.order.Front() {
				break
			}
		}

		old := r.order.Remove(at).(*set)
		delete(r.sets, old.key)
		r.bytes -= old.bytes

		for _, c := range old.tensors {
			if c.whole != nil {
				c.whole.Free()
			}
		}
	}

	return s, nil
}

// make computes what weights change.
func (r *Routed) make(key string, weights []float64) (*set, error) {
	s := &set{key: key, tensors: make([]changed, len(r.e.manifest.Routed))}
	g := mmapsafe.NewErrors()
	g.SetLimit(runtime.GOMAXPROCS(0))

	for i, name := range r.e.manifest.Routed {
		g.Go(func() (err error) {
			if r.swaps {
				s.tensors[i], err = r.complete(name, weights)
			} else {
				s.tensors[i], err = r.e.elements(name, weights)
			}
			return err
		})
	}

	if err := g.Wait(); err != nil {
		return nil, err
	}

	// Weights that change nothing of a tensor (its experts have weight 0) must not make a switch touch it.
	s.tensors = slices.DeleteFunc(s.tensors, func(c changed) bool { return c.whole == nil && len(c.values) == 0 })
	for _, c := range s.tensors {
		s.bytes += int64(4*len(c.at) + len(c.values))
		if c.whole != nil {
			s.bytes += int64(c.width) * int64(c.whole.Len)
		}
	}

	return s, nil
}

// complete computes a whole tensor under weights, in memory of the model's device.
func (r *Routed) complete(name string, weights []float64) (changed, error) {
	info, _ := r.e.dense.Info(name)
	c := changed{name: name, width: info.DType.Bits() / 8}
	dense, err := r.e.dense.Bytes(name)
	if err != nil {
		return c, err
	}

	stored := dtype.Matrix(info.DType)
	if stored == 0 {
		return c, fmt.Errorf("tensor %q is %s: %w", name, info.DType, experts.ErrExpert)
	}
	if c.whole, err = r.m.Device().Alloc(stored, int(info.Elements())); err != nil {
		return c, err
	}

	out, host := c.whole.Bytes(), r.m.Device().Info().Host
	if !host {
		out = make([]byte, info.Size)
	}

	var ws experts.Workspace
	if err = r.e.whole(&ws, info, dense, weights, 0, experts.Chunks(info.Elements()), out); err == nil && !host {
		err = r.m.Device().Upload(c.whole, 0, out)
	}

	return c, err
}

// elements lists what weights change of a tensor.
func (e *Experts) elements(name string, weights []float64) (changed, error) {
	info, _ := e.dense.Info(name)
	c := changed{name: name, width: info.DType.Bits() / 8}
	dense, err := e.dense.Bytes(name)
	if err != nil {
		return c, err
	}

	var ws experts.Workspace
	for chunk := range experts.Chunks(info.Elements()) {
		err := ws.Weigh(e.weighted(weights), name, info.DType, dense, chunk, func(i int64, v []byte) {
			c.at = append(c.at, uint32(i))
			c.values = append(c.values, v...)
		})
		if err != nil {
			return c, err
		}
	}

	return c, nil
}
