//go:build !linux

package runcmd

import "syscall"

// attributes of a child process: an interrupt at the terminal is passed on by the runner. Where a child
// outlives its runner, it keeps the job's lock until it ends.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
