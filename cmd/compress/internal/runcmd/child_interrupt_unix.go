//go:build unix

package runcmd

import "os"

// interrupt asks a child to end and keep what it has.
func interrupt(p *os.Process) error { return p.Signal(os.Interrupt) }
