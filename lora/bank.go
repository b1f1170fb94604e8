package lora

import (
	"context"
	"sort"
	"sync"

	"github.com/modelcompress/compress/lm"
	"github.com/modelcompress/compress/lora/internal/adapter"
	"github.com/modelcompress/compress/lora/internal/delta"
	"github.com/modelcompress/compress/lora/internal/mos"
)

// Bank holds one base model with many adapters, attached by name, each of which acts on the sequences that ask
// for it. An adapter takes the memory of its parameters, of a Mixture of Shards its pools; factors are made
// when a pass needs them. A bank is safe for use by several goroutines; its passes run one at a time.
type Bank struct {
	m     *lm.Model
	inner *delta.Bank
	mu    sync.Mutex // guards names
	names map[string]*Adapter
}

// Memory is what an adapter of a [Bank] takes.
type Memory struct {
	Name  string `json:"name"`
	Kind  string `json:"kind"`
	Bytes int64  `json:"bytes"`      // in the bank
	LoRA  int64  `json:"lora_bytes"` // that plain factors of the same ranks would take
}

// NewBank attaches an empty bank to a model. No pass may run meanwhile.
func NewBank(m *lm.Model) (*Bank, error) {
	inner, err := delta.NewBank(m)
	return &Bank{m: m, inner: inner, names: map[string]*Adapter{}}, err
}

// Add takes in an adapter under a name, which must be new. Adapters that change more than matrices of blocks by
// low-rank factors, such as DoRA or whole tensors, cannot differ from row to row; the error wraps
// ErrUnsupported.
func (b *Bank) Add(name string, a *Adapter) error {
	if err := b.inner.Add(name, a.inner); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.names[name] = a
	return nil
}

// Remove forgets an adapter.
func (b *Bank) Remove(name string) {
	b.inner.Remove(name)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.names, name)
}

// Forward runs the model over sequences of token ids, sequence i with the adapter names[i]; "" is the base alone.
func (b *Bank) Forward(ctx context.Context, ids [][]int32, names []string, o lm.ForwardOptions) (*lm.Result, error) {
	lens := make([]int, len(ids))
	for i, seq := range ids {
		lens[i] = len(seq)
	}
	return b.inner.Run(func() (*lm.Result, error) { return b.m.Forward(ctx, ids, o) }, lens, names)
}

// Memory lists what the adapters take, by name.
func (b *Bank) Memory() []Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]Memory, 0, len(b.names))
	for name, a := range b.names {
		list = append(list, memoryOf(name, a.inner))
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Name < list[j].Name })
	return list
}

// memoryOf is what an adapter takes in a bank.
func memoryOf(name string, a *adapter.Adapter) Memory {
	m := Memory{Name: name, Kind: string(a.Config.Kind)}
	for _, p := range a.Params() {
		m.Bytes += 4 * int64(p.Value.Len())
	}
	for _, p := range mos.Pools(a) {
		m.Bytes += 4 * int64(len(p.IndexA)+len(p.IndexB))
	}
	for _, l := range a.Low {
		m.LoRA += plainBytes(l)
	}

	return m
}

// plainBytes is what a module's factors take as they are.
func plainBytes(l *adapter.Low) int64 { return 4 * int64(l.Rank) * int64(l.Module.In+l.Module.Out) }

// Close detaches the bank. No pass may run meanwhile.
func (b *Bank) Close() { b.inner.Close() }
