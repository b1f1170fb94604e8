package moe

import (
	"fmt"
	"runtime"

	"github.com/modelcompress/compress/merge/internal/stream"
)

const (
	defaultMemory = 1 << 30
	elementBytes  = 4 + 8   // of buffers, for each element that a worker holds: a float and what is written
	maxChunk      = 1 << 18 // more does not make it faster
	minChunk      = 1 << 12 // fewer make it slow
	maxTokens     = 1 << 14
)

// divide shares the memory out: the gates have to be held, workers take what they need of the rest, and so do
// activations before them. The error wraps [stream.ErrMemory].
func (m *Mixture) divide() error {
	budget := m.options.Memory
	if budget == 0 {
		budget = defaultMemory
	}

	rows := int64(len(m.Config.Experts) + len(m.Config.Shared))
	gates := 2 * 4 * rows * int64(m.base.Layers) * int64(m.base.Hidden) // as they are computed, and as they are written
	if m.workers = m.options.Threads; m.workers == 0 {
		m.workers = runtime.GOMAXPROCS(0)
	}

	left := budget - gates
	m.workers = max(1, min(m.workers, int(left/(elementBytes*minChunk))))
	m.chunk = min(maxChunk, left/(elementBytes*int64(m.workers)))
	if m.chunk < minChunk {
		return memoryFault("gates and buffers", gates+elementBytes*minChunk, budget)
	}
	if !m.Config.NeedsStates() {
		return nil
	}

	m.tokens = int(min(maxTokens, (left-m.blockBytes())/m.tokenBytes()))
	if m.tokens < 1 {
		return memoryFault("hidden states of a prompt", gates+m.blockBytes()+m.tokenBytes(), budget)
	}

	return nil
}

// memoryFault says how much memory there should be.
func memoryFault(what string, need, have int64) error {
	return fmt.Errorf("%s need %d KiB, %d KiB are allowed: %w", what, need>>10+1, have>>10, stream.ErrMemory)
}

// blockBytes is what the weights of a block take at most, where the device holds copies of them.
func (m *Mixture) blockBytes() int64 {
	c := m.base
	width := int64(c.HeadDim) * int64(2*c.Heads+2*c.KVHeads)
	return 4 * int64(c.Hidden) * (width + 3*int64(c.Inner))
}

// tokenBytes is what a token takes on its way through a block: its state in and out of each part, and what is between.
func (m *Mixture) tokenBytes() int64 {
	c := m.base
	width := int64(c.HeadDim) * int64(2*c.Heads+2*c.KVHeads)
	return 4 * (6*int64(c.Hidden) + 2*width + 3*int64(c.Inner))
}

// batches cuts prompts into runs that go through the base together. The error wraps [stream.ErrMemory] for a
// prompt that is too long for that by itself.
func (m *Mixture) batches(ids [][]int32) (out [][][]int32, err error) {
	n, from := 0, 0
	for i, p := range ids {
		if len(p) > m.tokens {
			budget := m.options.Memory
			return nil, memoryFault(fmt.Sprintf("the states of a prompt of %d tokens", len(p)),
				budget+int64(len(p)-m.tokens)*m.tokenBytes(), budget)
		}

		if n+len(p) > m.tokens {
			out, n, from = append(out, ids[from:i]), 0, i
		}

		n += len(p)
	}

	return append(out, ids[from:]), nil
}
