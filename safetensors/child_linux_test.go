package safetensors

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// childFull mounts a file system of 1 MB of its own, which takes a user namespace, and expects a
// clean refusal there.
func childFull(dir string) error {
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		fmt.Println("skip")
		return nil
	}
	return expectRefusal(dir, ErrNoSpace)
}

// TestDiskFull meets a full disk before anything is written.
func TestDiskFull(t *testing.T) {
	full := child("full", t.TempDir())
	full.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}

	out, err := full.Output()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit) || strings.Contains(string(out), "skip"):
		t.Skip("no user namespace with a mount here: ", err)
	case err != nil:
		t.Errorf("disk: %v: %s", err, out)
	}
}
