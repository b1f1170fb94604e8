package output

import "os"

// Stage is the hidden folder that becomes the output. What is put there in folders of their own stays, and is
// published with the rest.
func (f *Folder) Stage() string { return f.place.Dir }

// Same reports whether two paths are one folder.
func Same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
