// Package layer computes the blocks of a model and their gradients on a device. Every step is a pair of functions, one
// forward and one backward, in the same file.
//
// A [Pass] runs over the rows of some sequences. What a block computes on the way lies in a [Tape]: a plain run
// reuses the memory of everything that the next step does not need, a recorded one ([Pass.Record]) keeps what
// [Pass.Backward] needs, and [Pass.Replay] computes that again from the block's input alone, without the last
// product of each branch that no gradient depends on.
//
// The values of weights are the caller's: they must be resident while a pass runs.
package layer
