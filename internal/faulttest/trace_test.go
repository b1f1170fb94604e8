//go:build linux && amd64

package faulttest

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// launchVariable makes the test program install the filter and become the program under test.
const launchVariable = "COMPRESS_FAULT_LAUNCH"

// The kinds of system calls that are seen.
const (
	kindRead   = "read"
	kindWrite  = "write"
	kindSync   = "fsync"
	kindRename = "rename"
	kindOpen   = "open"
	kindCreate = "create"
	kindRemove = "remove"
	kindMkdir  = "mkdir"
	kindResize = "resize"
	kindMap    = "map"
	kindLink   = "link"
)

// seen lists the system calls that the filter reports.
var seen = map[uint64]string{
	unix.SYS_READ: kindRead, unix.SYS_PREAD64: kindRead, unix.SYS_WRITE: kindWrite, unix.SYS_PWRITE64: kindWrite,
	unix.SYS_FSYNC: kindSync, unix.SYS_FDATASYNC: kindSync,
	unix.SYS_RENAME: kindRename, unix.SYS_RENAMEAT: kindRename, unix.SYS_RENAMEAT2: kindRename,
	unix.SYS_OPENAT: kindOpen, unix.SYS_UNLINKAT: kindRemove, unix.SYS_UNLINK: kindRemove,
	unix.SYS_MKDIRAT: kindMkdir, unix.SYS_FTRUNCATE: kindResize, unix.SYS_FALLOCATE: kindResize, unix.SYS_MMAP: kindMap,
	unix.SYS_LINKAT:    kindLink,
	unix.SYS_SYMLINKAT: kindLink, unix.SYS_COPY_FILE_RANGE: kindWrite, unix.SYS_SENDFILE: kindWrite,
}

// call is one system call on a file below the run's folder.
type call struct {
	kind string
	path string // relative to the run's folder
	size int64  // bytes asked for
}

// changes reports whether the call changes what is on the disk.
func (c call) changes() bool {
	switch c.kind {
	case kindRead, kindOpen, kindMap:
		return false
	}
	return true
}

// fault is what is done at a call.
type fault struct {
	match  func(c call) bool // which calls are counted
	at     int               // the at-th of them, from 1; 0: none
	kill   bool              // before the call, or, with torn, after a part of its bytes
	torn   bool              // write, and read, only torn64ths/64 of the bytes
	part   int64             // that part, in 64ths
	errno  syscall.Errno     // fail so instead
	sticky bool              // and all later ones of the match too
	hook   func(c call)      // called while the program stands before the call
}

// ended is how a run ended.
type ended struct {
	code    int // of the exit; -1: killed by a signal
	signal  syscall.Signal
	hit     *call // where the fault was
	counted int   // calls that matched
	stderr  string
	hung    bool
}

// command is a run of the program.
type command struct {
	binary, dir string
	args        []string
	env         []string
	limit       time.Duration // after which it counts as hanging; 0: -patience
	family      bool          // it starts processes of its own, which leave its group
}

// trace runs a command under a fault. Its stdout is thrown away.
func trace(c command, f fault) (ended, error) {
	runtime.LockOSThread() // all ptrace requests have to come from the thread that is the tracer
	defer runtime.UnlockOSThread()

	log, err := os.Create(c.dir + ".stderr")
	if err != nil {
		return ended{}, err
	}
	defer log.Close()

	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return ended{}, err
	}
	defer null.Close()

	self, err := os.Executable()
	if err != nil {
		return ended{}, err
	}

	pid, err := syscall.ForkExec(self, append([]string{c.binary}, c.args...), &syscall.ProcAttr{
		Dir: c.dir, Env: append(c.env, launchVariable+"="+c.binary), Files: []uintptr{null.Fd(), null.Fd(), log.Fd()},
		Sys: &syscall.SysProcAttr{Ptrace: true, Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return ended{}, fmt.Errorf("no child to trace: %w", err)
	}

	t := &tracer{pid: pid, fault: f, dir: c.dir, known: map[int]bool{pid: true}, who: -pid, how: unix.WALL}
	if c.family {
		t.who, t.how = -1, unix.WALL|unix.WNOTHREAD // whatever this thread traces
	}

	watchdog := time.AfterFunc(cmp.Or(c.limit, *patience), func() {
		t.hung = true
		_ = syscall.Kill(-pid,
			syscall.SIGKILL)
	})

	defer watchdog.Stop()

	if err := t.follow(); err != nil {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
		return ended{}, err
	}

	text, err := os.ReadFile(log.Name())
	t.ended.hung, t.ended.stderr = t.hung, string(text)
	return t.ended, err
}

// tracer follows the threads of one process.
type tracer struct {
	fault
	pid     int
	dir     string
	known   map[int]bool
	who     int // what is waited for
	how     int
	running bool // the program itself has begun
	leaving int  // the thread that is killed when its call is over
	hung    bool
	ended   ended
}

func (t *tracer) follow() error {
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(t.pid, &status, 0, nil); err != nil || !status.Stopped() {
		return fmt.Errorf("the child did not stop at its start: %w", errors.Join(err, errors.ErrUnsupported))
	}

	const options = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
		unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACESECCOMP |
		unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL
	if err := syscall.PtraceSetOptions(t.pid, options); err != nil {
		return fmt.Errorf("ptrace: %w", err)
	}

	resume(t.pid, 0)

	for {
		tid, err := syscall.Wait4(t.who, &status, t.how, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case errors.Is(err, syscall.ECHILD):
			return nil
		case err != nil:
			return fmt.Errorf("wait: %w", err)
		case status.Exited() && tid == t.pid:
			t.ended.code = status.ExitStatus()
		case status.Signaled() && tid == t.pid:
			t.ended.code, t.ended.signal = -1, status.Signal()
		case status.Stopped():
			t.stopped(tid, status)
		}
	}
}

// resume lets a thread go on. It may have been killed meanwhile, which Wait4 tells.
func resume(tid, signal int) { _ = syscall.PtraceCont(tid, signal) }

func (t *tracer) stopped(tid int, status syscall.WaitStatus) {
	signal := status.StopSignal()
	switch {
	case signal == syscall.SIGTRAP|0x80:
		if tid == t.leaving {
			t.end()
			return
		}
		resume(tid, 0)
	case signal == syscall.SIGTRAP && status.TrapCause() > 0:
		if status.TrapCause() == unix.PTRACE_EVENT_EXEC {
			t.running = true
		}

		if status.TrapCause() != unix.PTRACE_EVENT_SECCOMP || !t.running {
			resume(tid, 0)
			return
		}

		t.entered(tid)
	case signal == syscall.SIGSTOP && !t.known[tid]:
		t.known[tid] = true // a new thread
		resume(tid, 0)
	default:
		resume(tid, int(signal))
	}
}

func (t *tracer) end() { _ = syscall.Kill(-t.pid, syscall.SIGKILL) }

// entered deals with a thread that stands before a system call.
func (t *tracer) entered(tid int) {
	var regs syscall.PtraceRegs
	if syscall.PtraceGetRegs(tid, &regs) != nil {
		return // killed
	}

	c, ours := t.call(tid, &regs)
	if !ours || t.match == nil || !t.match(c) {
		resume(tid, 0)
		return
	}

	t.ended.counted++
	if t.at == 0 || t.ended.counted != t.at && (!t.sticky || t.ended.counted < t.at) {
		resume(tid, 0)
		return
	}

	if t.ended.hit == nil {
		t.ended.hit = &c
	}
	if t.hook != nil {
		t.hook(c)
	}

	t.strike(tid, &regs, c)
}

func (t *tracer) strike(tid int, regs *syscall.PtraceRegs, c call) {
	switch {
	case t.errno != 0:
		regs.Orig_rax, regs.Rax = ^uint64(0), uint64(-int64(t.errno)) // the call is left out and gives this
		_ = syscall.PtraceSetRegs(tid, regs)
	case t.torn && (c.kind == kindWrite || c.kind == kindRead) && c.size > 1:
		*sizeOf(regs) = uint64(max(1, c.size*t.part/64))
		_ = syscall.PtraceSetRegs(tid, regs)

		if t.kill {
			t.leaving = tid
			_ = syscall.PtraceSyscall(tid, 0)
			return
		}
	case t.kill:
		t.end()
		return
	}

	resume(tid, 0)
}

// sizeOf is where a call that reads or writes has the number of bytes.
func sizeOf(regs *syscall.PtraceRegs) *uint64 {
	switch regs.Orig_rax {
	case unix.SYS_COPY_FILE_RANGE:
		return &regs.R8
	case unix.SYS_SENDFILE:
		return &regs.R10
	}
	return &regs.Rdx
}

// call says what a thread is about to do, and whether it is with a file of the run's folder.
func (t *tracer) call(tid int, r *syscall.PtraceRegs) (c call, ours bool) {
	c.kind = seen[r.Orig_rax]
	switch r.Orig_rax {
	case unix.SYS_OPENAT:
		c.path = t.pathAt(tid, r.Rdi, r.Rsi)
		if r.Rdx&unix.O_CREAT != 0 {
			c.kind = kindCreate
		}
	case unix.SYS_UNLINKAT, unix.SYS_MKDIRAT:
		c.path = t.pathAt(tid, r.Rdi, r.Rsi)
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_LINKAT:
		c.path = t.pathAt(tid, r.Rdx, r.R10)
	case unix.SYS_SYMLINKAT:
		c.path = t.pathAt(tid, r.Rsi, r.Rdx)
	case unix.SYS_RENAME:
		c.path = t.pathAt(tid, atWorkingFolder, r.Rsi)
	case unix.SYS_UNLINK:
		c.path = t.pathAt(tid, atWorkingFolder, r.Rdi)
	case unix.SYS_MMAP:
		c.path, c.size = t.pathOf(tid, r.R8), int64(r.Rsi)
	case unix.SYS_COPY_FILE_RANGE:
		c.path, c.size = t.pathOf(tid, r.Rdx), int64(r.R8)
	case unix.SYS_SENDFILE:
		c.path, c.size = t.pathOf(tid, r.Rdi), int64(r.R10)
	default:
		c.path, c.size = t.pathOf(tid, r.Rdi), int64(r.Rdx)
	}

	rel, err := filepath.Rel(t.dir, c.path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return c, false
	}

	c.path = rel
	return c, true
}

// atWorkingFolder is AT_FDCWD as a register holds it.
const atWorkingFolder = ^uint64(99)

// pathOf is the path of an open file.
func (t *tracer) pathOf(tid int, fd uint64) string {
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", tid, int32(fd)))
	if err != nil {
		return ""
	}
	return path
}

// pathAt is a path that a system call is given.
func (t *tracer) pathAt(tid int, folder, address uint64) string {
	buf := make([]byte, 4096)
	n, err := unix.ProcessVMReadv(tid, []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}},
		[]unix.RemoteIovec{{Base: uintptr(address), Len: pageLeft(address)}}, 0)
	if err != nil {
		return ""
	}

	path, _, found := strings.Cut(string(buf[:n]), "\x00")
	if !found { // over the edge of a page
		if n, err = unix.ProcessVMReadv(tid, []unix.Iovec{{Base: &buf[0], Len: uint64(len(buf))}},
			[]unix.RemoteIovec{{Base: uintptr(address), Len: 4096}}, 0); err != nil {
			return ""
		}
		path, _, _ = strings.Cut(string(buf[:n]), "\x00")
	}

	if filepath.IsAbs(path) {
		return path
	}
	if int32(folder) == unix.AT_FDCWD {
		return filepath.Join(t.dir, path)
	}

	return filepath.Join(t.pathOf(tid, folder), path)
}

// pageLeft is how many bytes there are up to the end of an address's page, so that no unmapped one is touched.
func pageLeft(address uint64) int { return int(4096 - address%4096) }

// launch installs the filter on the thread and becomes the program under test.
func launch(binary string) error {
	runtime.LockOSThread()
	program := filter()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}

	list := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0,
		uintptr(unsafe.Pointer(&list))); errno != 0 {
		return errno
	}

	return syscall.Exec(binary, os.Args, os.Environ())
}

// filter is a program for the kernel that reports the calls of the table and lets the others pass.
func filter() []unix.SockFilter {
	const report, pass = unix.SECCOMP_RET_TRACE, unix.SECCOMP_RET_ALLOW
	list := []unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}} // the number of the call
	for nr := range seen {
		list = append(list, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(nr), Jf: 1},
			unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: report})
	}
	return append(list, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: pass})
}
