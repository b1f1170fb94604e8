package runcmd

import "syscall"

// attributes of a child process: an interrupt at the terminal is passed on by the runner, and the child dies with it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
