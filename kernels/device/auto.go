package device

import (
	"fmt"
	"os"
	"strconv"
)

// Use is how work uses the weights that it reads.
type Use uint8

// The ways. What decides is how much is computed with a weight each time that it has come over the bus.
const (
	Batches Use = iota // passes of many tokens at a time: pruning by calibration, evaluation, training, editing
	Tokens             // passes of one token at a time: generating
	Once               // every weight once or twice, from its file: merging, comparing, converting
)

// String says what the work is.
func (u Use) String() string {
	return [...]string{"batches of tokens", "one token at a time", "every weight once"}[u]
}

// LargeWork is the size of weights from which "auto" may take a graphics processor: smaller work is done in
// seconds anywhere. The environment variable COMPRESS_AUTO_FROM, a number of bytes, takes its place, and that
// of the estimate for what is not [Once].
const LargeWork = 1 << 30

// Rates that "auto" reckons with, on the safe side for the CPU: a server's eight cores against a board of 2020
// behind PCIe 4.
const (
	hostReads  = 20e9 // bytes per second of weights, from the file's pages in memory
	hostFlops  = 2e11 // floating-point operations per second in products
	linkReads  = 12e9 // bytes per second from the file's pages to the board
	boardReads = 1e12 // bytes per second from the board's memory
	boardFlops = 3e13 // floating-point operations per second in products
	starting   = 1.0  // seconds for the driver, and for its compiler
)

// passes is how many passes over the weights an estimate supposes, and how many tokens each has.
func (u Use) passes() (passes, tokens float64) {
	switch u {
	case Batches:
		return 16, 1024
	case Tokens:
		return 256, 1
	}
	return 1, 0
}

// Cost estimates the seconds of work on weights of so many bytes, of two for each: on the host, and on a
// graphics processor that holds the weights, or is sent them anew for every pass if they do not fit. A product
// takes two operations for each weight and token. Work that uses weights once sends its result back.
func (u Use) Cost(weights int64, fits bool) (host, board float64) {
	passes, tokens := u.passes()
	bytes := float64(weights)
	flops := tokens * bytes // two for each weight of two bytes
	host = passes * max(bytes/hostReads, flops/hostFlops)

	board = passes * max(bytes/boardReads, flops/boardFlops)
	switch {
	case u == Once:
		board += 2 * bytes / linkReads
	case fits:
		board += bytes / linkReads
	default:
		board = passes * max(bytes/linkReads, flops/boardFlops)
	}

	return host, starting + board
}

// Suits tells whether "auto" takes a graphics processor for the work, which may fit its memory, and why, in a
// few words.
func (u Use) Suits(weights int64, fits bool) (bool, string) {
	host, board := u.Cost(weights, fits)
	from, given := threshold()
	switch {
	case weights < from:
		return false, fmt.Sprintf("less than %s of weights", gib(from))
	case given && u != Once, board < host:
		return true, fmt.Sprintf("about %.3g s instead of %.3g s on the CPU", board, host)
	case u == Once:
		return false, fmt.Sprintf("every weight is used once: about %.3g s, most of it on the bus, instead of %.3g "+
			"s on the CPU", board, host)
	}

	return false, fmt.Sprintf("the weights do not fit: about %.3g s instead of %.3g s on the CPU", board, host)
}

// threshold is the least size of weights, and whether it was given.
func threshold() (int64, bool) {
	n, err := strconv.ParseInt(os.Getenv("COMPRESS_AUTO_FROM"), 10, 64)
	if err != nil || n < 0 {
		return LargeWork, false
	}
	return n, true
}

func gib(n int64) string { return fmt.Sprintf("%.3g GiB", float64(n)/(1<<30)) }
