package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/modelcompress/compress/internal/scratch"
	"github.com/modelcompress/compress/safetensors"
)

// The names of a run's files: state-00000120.safetensors is the state after 120 steps; best.safetensors the best
// values so far.
const (
	statePrefix = "state-"
	stateSuffix = ".safetensors"
	bestName    = "best.safetensors"
	haltedName  = "halted" // is there after a step whose loss was not finite, until the next state is written
)

// Folder is the folder in which a run keeps its states.
type Folder string

// Open makes the folder, or with resume leaves in it what an earlier run has left.
func (f Folder) Open(resume bool) error {
	if err := scratch.Leftover(string(f), haltedName, bestName); err != nil {
		return err
	}

	if !resume {
		if err := f.empty(); err != nil {
			return err
		}
	}

	return os.MkdirAll(string(f), 0o777)
}

// State is the path of the state after some steps.
func (f Folder) State(steps int) string {
	return filepath.Join(string(f), fmt.Sprintf("%s%08d%s", statePrefix, steps, stateSuffix))
}

// Best is the path of the best values so far.
func (f Folder) Best() string { return filepath.Join(string(f), bestName) }

// Has reports whether there is a state after some steps.
func (f Folder) Has(steps int) bool { return exists(f.State(steps)) }

// Halted reports whether the run was ended by a loss that was not finite; see [Folder.Halt].
func (f Folder) Halted() bool { return exists(filepath.Join(string(f), haltedName)) }

// Halt notes why a run has ended, which may then go on with other settings.
func (f Folder) Halt(reason error) error {
	return os.WriteFile(filepath.Join(string(f), haltedName), []byte(reason.Error()+"\n"), 0o666)
}

// GoOn takes back what Halt has noted.
func (f Folder) GoOn() error { return os.RemoveAll(filepath.Join(string(f), haltedName)) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Latest finds the newest state, and after how many steps it was written; "" if there is none.
func (f Folder) Latest() (path string, steps int, err error) {
	list, err := os.ReadDir(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return "", 0, nil
	}
	if err != nil {
		return "", 0, err
	}

	name, most := "", -1
	for _, e := range list {
		digits, ok := strings.CutPrefix(e.Name(), statePrefix)
		if !ok {
			continue
		}
		if digits, ok = strings.CutSuffix(digits, stateSuffix); !ok {
			continue
		}

		// By number, not by name: 100 comes before 20 in a folder.
		if n, err := strconv.Atoi(digits); err == nil && n > most {
			name, most = e.Name(), n
		}
	}

	if name == "" {
		return "", 0, nil
	}

	return filepath.Join(string(f), name), most, nil
}

// Newest reads the progress, a P, in the newest state that is what was written; path is empty if there is none.
// States that are not are removed, of which remark (unless nil) is told: their steps are done again.
func Newest[P any](f Folder, remark func(string)) (path string, progress *P, err error) {
	for {
		path, steps, err := f.Latest()
		if err != nil || path == "" {
			return "", nil, err
		}

		p := new(P)
		file, err := readState(path, p)
		if err == nil {
			return path, p, file.Close()
		}

		// Only what the file itself says against it makes it useless. A disk that cannot be read now may be
		// readable later, and removing the state would lose hours of work.
		var format *safetensors.Error
		var system syscall.Errno
		if !errors.Is(err, ErrState) && !errors.As(err, &format) || errors.As(err, &system) {
			return "", nil, err
		}

		if remark != nil {
			remark(fmt.Sprintf("%v: the state after %d steps is not used, and steps are done again", err, steps))
		}
		if err := os.Remove(path); err != nil {
			return "", nil, err
		}
	}
}

// Prune removes all states but those after some numbers of steps.
func (f Folder) Prune(keep ...int) error {
	list, err := os.ReadDir(string(f))
	if err != nil {
		return err
	}

	for _, e := range list {
		path := filepath.Join(string(f), e.Name())
		kept := slices.ContainsFunc(keep, func(k int) bool { return path == f.State(k) })
		if strings.HasPrefix(e.Name(), statePrefix) && !kept {
			err = errors.Join(err, os.Remove(path))
		}
	}

	return err
}

// empty removes what is in the folder. The folder itself stays, as it may be locked.
func (f Folder) empty() error {
	list, err := os.ReadDir(string(f))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range list {
		err = errors.Join(err, os.RemoveAll(filepath.Join(string(f), e.Name())))
	}
	return err
}
