package runcmd

import (
	"os"
	"os/exec"
	"syscall"
)

// tie makes a command a child of its own: an interrupt at the terminal reaches it through the runner alone, it dies
// with the runner, and it holds the job's lock as long as it lives.
func tie(cmd *exec.Cmd, held *os.File) {
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
