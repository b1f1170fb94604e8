package runcmd

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/windows"
)

// tie makes a command a child of its own: an interrupt at the console reaches it through the runner alone. The lock of
// the job cannot be handed on here: where a child outlives its runner, the lock of its output is what keeps others off.
func tie(cmd *exec.Cmd, _ *os.File) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// interrupt asks a child to end and keep what it has.
func interrupt(p *os.Process) error {
	return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, uint32(p.Pid))
}
