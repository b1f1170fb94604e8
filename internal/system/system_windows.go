package system

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// Ways to open a file, to be joined with those of package os; 0 on a system that has no such way.
const (
	NoFollow   = windows.FILE_FLAG_OPEN_REPARSE_POINT // of [OpenFile] alone: a link is an error
	NonBlock   = 0                                    // nothing that has a path holds anybody up
	NoTerminal = 0
)

// OpenFile is [os.OpenFile] of a file that others may rename and remove meanwhile, which package os refuses them here.
func OpenFile(path string, flag int, perm fs.FileMode) (*os.File, error) {
	f, err := open(path, flag, perm)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return f, nil
}

func open(path string, flag int, perm fs.FileMode) (*os.File, error) {
	name, err := windows.UTF16PtrFromString(long(path))
	if err != nil {
		return nil, err
	}

	h, err := windows.CreateFile(name, access(flag), windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|
		windows.FILE_SHARE_DELETE, nil, disposition(flag), attributes(flag, perm), 0)
	if err != nil {
		return nil, err
	}

	f := os.NewFile(uintptr(h), path)
	if err := suits(f, flag); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if flag&os.O_TRUNC != 0 {
		if err := f.Truncate(0); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}

	return f, nil
}

// patience is how long a name is waited for that another process has open.
const patience = 2 * time.Second

// Rename is [os.Rename], which waits a moment for those who have a file of that name open: the one who wrote it before,
// or a program that looks at new files.
func Rename(from, to string) error {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		err := os.Rename(from, to)
		if !errors.Is(err, windows.ERROR_ACCESS_DENIED) && !errors.Is(err, windows.ERROR_SHARING_VIOLATION) ||
			time.Now().After(end) {
			return err
		}
	}
}

// long is a path of which the system does not ask that it be short.
func long(path string) string {
	const short = 240 // of the 260 that names may have, some are for what is appended
	if len(path) < short {
		return path
	}
	abs, err := filepath.Abs(path)
	if err != nil || len(abs) < 2 || abs[1] != ':' {
		return path
	}
	return `\\?\` + abs
}

// access is what a file that is opened with these flags may be used for.
func access(flag int) uint32 {
	var a uint32
	switch flag & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR) {
	case os.O_WRONLY:
		a = windows.GENERIC_WRITE
	case os.O_RDWR:
		a = windows.GENERIC_READ | windows.GENERIC_WRITE
	default:
		a = windows.GENERIC_READ
	}

	if flag&os.O_APPEND != 0 && flag&os.O_TRUNC == 0 {
		// Without the right to write anywhere, what is written goes to the end.
		a = a&^windows.GENERIC_WRITE | windows.FILE_APPEND_DATA | windows.FILE_WRITE_ATTRIBUTES | windows.SYNCHRONIZE
	}

	return a
}

func disposition(flag int) uint32 {
	switch {
	case flag&os.O_CREATE != 0 && flag&os.O_EXCL != 0:
		return windows.CREATE_NEW
	case flag&os.O_CREATE != 0:
		return windows.OPEN_ALWAYS
	}
	return windows.OPEN_EXISTING
}

func attributes(flag int, perm fs.FileMode) uint32 {
	a := uint32(windows.FILE_ATTRIBUTE_NORMAL)
	if flag&os.O_CREATE != 0 && perm&0o200 == 0 {
		a = windows.FILE_ATTRIBUTE_READONLY
	}
	if flag&NoFollow != 0 {
		a |= windows.FILE_FLAG_OPEN_REPARSE_POINT
	}
	if flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		a |= windows.FILE_FLAG_BACKUP_SEMANTICS // folders can be opened, too
	}
	return a
}

// suits refuses the link itself, which is open where links are not followed.
func suits(f *os.File, flag int) error {
	if flag&NoFollow == 0 {
		return nil
	}
	var info windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &info); err != nil {
		return err
	}
	if info.FileAttributes&windows.FILE_ATTRIBUTE_REPARSE_POINT != 0 {
		return syscall.ELOOP
	}
	return nil
}

// OpenIn opens a file by its name in a folder that is open.
func OpenIn(folder *os.File, name string, flag int) (*os.File, error) {
	return OpenFile(filepath.Join(folder.Name(), name), flag, 0)
}

// Duplicate is another handle of what this process has open as a descriptor: here nothing has a name of that kind.
func Duplicate(int) (*os.File, error) { return nil, errors.ErrUnsupported }

// lockedAt is where a file is locked: far behind its end, since what is locked cannot be read or written by others.
const lockedAt = math.MaxInt64 - 1

func lockFile(f *os.File, wait bool) error {
	var how uint32 = windows.LOCKFILE_EXCLUSIVE_LOCK
	if !wait {
		how |= windows.LOCKFILE_FAIL_IMMEDIATELY
	}

	at := windows.Overlapped{Offset: lockedAt & math.MaxUint32, OffsetHigh: lockedAt >> 32}
	err := windows.LockFileEx(windows.Handle(f.Fd()), how, 0, 1, 0, &at)
	switch {
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION), errors.Is(err, windows.ERROR_IO_PENDING):
		return ErrLocked
	case errors.Is(err, windows.ERROR_NOT_SUPPORTED), errors.Is(err, windows.ERROR_INVALID_FUNCTION):
		return fmt.Errorf("%w: %w", ErrNoLocks, err)
	}

	return err
}

// Folder is a folder that is open. Folders have no locks here, and cannot be renamed while something in them is open:
// what is locked is a hidden file beside it, which goes with the handle, also when the process is killed.
type Folder struct {
	*os.File
	lock *windows.Handle
}

// OpenFolder opens a folder, but not what a link leads to.
func OpenFolder(dir string) (Folder, error) {
	f, err := OpenFile(dir, os.O_RDONLY|NoFollow, 0)
	if err != nil {
		return Folder{}, err
	}

	st, err := f.Stat()
	if err == nil && !st.IsDir() {
		err = &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return Folder{}, errors.Join(err, f.Close())
	}

	none := windows.InvalidHandle
	return Folder{f, &none}, nil
}

// LockName is the file by which a folder is locked.
func LockName(dir string) string {
	return filepath.Join(filepath.Dir(dir), "."+filepath.Base(dir)+".compress-lock")
}

// TryLock locks the folder until it is closed; see the function [TryLock].
func (f Folder) TryLock() error {
	abs, err := filepath.Abs(f.Name())
	if err != nil {
		return err
	}

	name, err := windows.UTF16PtrFromString(long(LockName(abs)))
	if err != nil {
		return err
	}

	h, err := windows.CreateFile(name, windows.GENERIC_WRITE|windows.DELETE, 0, nil, windows.OPEN_ALWAYS,
		windows.FILE_ATTRIBUTE_HIDDEN|windows.FILE_FLAG_DELETE_ON_CLOSE, 0)
	switch {
	case errors.Is(err, windows.ERROR_SHARING_VIOLATION), errors.Is(err, windows.ERROR_ACCESS_DENIED):
		return ErrLocked // denied: the one before is being removed
	case err != nil:
		return &fs.PathError{Op: "lock", Path: f.Name(), Err: err}
	}

	*f.lock = h
	return nil
}

// Close ends the lock, too.
func (f Folder) Close() error {
	var err error
	if *f.lock != windows.InvalidHandle {
		err = windows.CloseHandle(*f.lock)
		*f.lock = windows.InvalidHandle
	}
	return errors.Join(err, f.File.Close())
}

// same are the numbers of this system for those that the program asks for.
var same = map[syscall.Errno][]windows.Errno{
	syscall.ENOSPC:  {windows.ERROR_DISK_FULL, windows.ERROR_HANDLE_DISK_FULL},
	syscall.EDQUOT:  {windows.ERROR_DISK_QUOTA_EXCEEDED},
	syscall.EFBIG:   {windows.ERROR_FILE_TOO_LARGE},
	syscall.EIO:     {windows.ERROR_IO_DEVICE, windows.ERROR_CRC, windows.ERROR_WRITE_FAULT, windows.ERROR_READ_FAULT},
	syscall.EROFS:   {windows.ERROR_WRITE_PROTECT},
	syscall.ENOTDIR: {windows.ERROR_DIRECTORY},
	syscall.EPIPE:   {windows.ERROR_BROKEN_PIPE, windows.ERROR_NO_DATA},
}

// Is reports whether an error is one of that number, or the one that this system has for it.
func Is(err error, number syscall.Errno) bool {
	if errors.Is(err, number) {
		return true
	}
	for _, n := range same[number] {
		if errors.Is(err, n) {
			return true
		}
	}
	return false
}

// SyncFolder makes the names in an open folder durable. Here that is left to the file system's journal.
func SyncFolder(*os.File) error { return nil }

// Mine reports whether a file or folder belongs to the user of this process. Here that is not looked at: folders for
// temporary files are a user's own.
func Mine(fs.FileInfo) bool { return true }

// Writable returns nil if this process may make names in a folder, as far as can be told without making one.
func Writable(string) error { return nil }

// Allocated is how many bytes of the disk a file takes.
func Allocated(st fs.FileInfo) int64 { return st.Size() }

// State names a state of a file: its volume, number, size and time. changed is when it last changed.
func State(path string) (name string, changed time.Time, err error) {
	f, err := OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return "", time.Time{}, err
	}
	defer f.Close()

	var s windows.ByHandleFileInformation
	if err := windows.GetFileInformationByHandle(windows.Handle(f.Fd()), &s); err != nil {
		return "", time.Time{}, err
	}

	name = fmt.Sprintf("%d:%d.%d:%d.%d:%d", s.VolumeSerialNumber, s.FileIndexHigh, s.FileIndexLow,
		s.FileSizeHigh, s.FileSizeLow, s.LastWriteTime.Nanoseconds())
	return name, time.Unix(0, s.LastWriteTime.Nanoseconds()), nil
}

// Space is the bytes that this process may still write beside a file or into a folder; -1 where the file system does
// not tell.
func Space(f *os.File) (free, most int64) {
	dir := f.Name()
	if st, err := f.Stat(); err != nil || !st.IsDir() {
		dir = filepath.Dir(dir)
	}

	name, err := windows.UTF16PtrFromString(dir)
	if err != nil {
		return -1, -1
	}

	var mine, total, all uint64
	if err := windows.GetDiskFreeSpaceEx(name, &mine, &total, &all); err != nil || total == 0 {
		return -1, -1
	}

	n := int64(min(mine, math.MaxInt64))
	return n, n
}

// Map maps a file of that size, which is not 0, to be read.
func Map(f *os.File, size int) ([]byte, error) {
	m, err := windows.CreateFileMapping(windows.Handle(f.Fd()), nil, windows.PAGE_READONLY, uint32(uint64(size)>>32),
		uint32(size), nil)
	if err != nil {
		return nil, err
	}
	at, err := windows.MapViewOfFile(m, windows.FILE_MAP_READ, 0, 0, uintptr(size))
	if err := errors.Join(err, windows.CloseHandle(m)); err != nil { // the view keeps the mapping
		return nil, err
	}
	return view(at, size), nil
}

// view is memory that the system has given, which no collector moves.
func view(at uintptr, size int) []byte {
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&at))), size)
}

// Anonymous is memory of whole pages, all zero, that the collector does not manage.
func Anonymous(size int) ([]byte, error) {
	at, err := windows.VirtualAlloc(0, uintptr(size), windows.MEM_COMMIT|windows.MEM_RESERVE, windows.PAGE_READWRITE)
	if err != nil {
		return nil, err
	}
	return view(at, size), nil
}

// Unmap gives back what [Map] or [Anonymous] gave, whole.
func Unmap(data []byte) error {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	var info windows.MemoryBasicInformation
	if err := windows.VirtualQuery(at, &info, unsafe.Sizeof(info)); err != nil {
		return err
	}
	const private = 0x20000 // MEM_PRIVATE: of VirtualAlloc, not of a file
	if info.Type == private {
		return windows.VirtualFree(at, 0, windows.MEM_RELEASE)
	}
	return windows.UnmapViewOfFile(at)
}

// Drop would give back the memory behind pages of a mapped file. Here they leave the process when the system needs
// them: it takes unlocked pages out of the working set, which is what this asks for.
func Drop(data []byte) error {
	// Unlocking pages that are not locked fails, and has that effect.
	_ = windows.VirtualUnlock(uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data)))
	return nil
}

// Prefetch would ask the system to read pages of a mapped file ahead of their use, which it does by itself here.
func Prefetch([]byte) {}

// LimitsAreErrors does nothing: files have no such limits here.
func LimitsAreErrors() {}

// ProcessorTime is the processor time of this process, on all of its threads.
func ProcessorTime() time.Duration {
	var created, exited, kernel, user windows.Filetime
	if windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user) != nil {
		return 0
	}
	ticks := func(t windows.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) }
	return time.Duration(ticks(kernel)+ticks(user)) * 100
}

// memoryCounters are PROCESS_MEMORY_COUNTERS of the system's library.
type memoryCounters struct {
	size, faults                     uint32
	peakWorkingSet, workingSet       uintptr
	quotas                           [4]uintptr
	pagefileUsage, peakPagefileUsage uintptr
}

// PeakMemory is the largest resident size that the process has had, in bytes; 0 where the system does not tell.
func PeakMemory() int64 {
	c := memoryCounters{}
	c.size = uint32(unsafe.Sizeof(c))
	call := windows.NewLazySystemDLL("kernel32.dll").NewProc("K32GetProcessMemoryInfo")
	if call.Find() != nil {
		return 0
	}
	ok, _, _ := call.Call(uintptr(windows.CurrentProcess()), uintptr(unsafe.Pointer(&c)), uintptr(c.size))
	if ok == 0 {
		return 0
	}
	return int64(c.peakWorkingSet)
}

// memoryStatus is MEMORYSTATUSEX of the system's library.
type memoryStatus struct {
	size, load                  uint32
	physical, freePhysical      uint64
	pagefile, freePagefile      uint64
	virtual, freeVirtual, extra uint64
}

// FreeMemory is how many bytes of memory the machine has left; false where the system does not tell.
func FreeMemory() (int64, bool) {
	s := memoryStatus{}
	s.size = uint32(unsafe.Sizeof(s))
	call := windows.NewLazySystemDLL("kernel32.dll").NewProc("GlobalMemoryStatusEx")
	if call.Find() != nil {
		return 0, false
	}
	ok, _, _ := call.Call(uintptr(unsafe.Pointer(&s)))
	return int64(min(s.freePhysical, math.MaxInt64)), ok != 0
}
