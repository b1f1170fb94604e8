//go:build unix && !linux

package runcmd

import (
	"os"
	"os/exec"
	"syscall"
)

// tie makes a command a child of its own: an interrupt at the terminal reaches it through the runner alone. Where it
// outlives its runner, it keeps the job's lock until it ends.
func tie(cmd *exec.Cmd, held *os.File) {
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
