package task

import (
	"strings"

	"github.com/modelcompress/compress/editeval/task/internal/taskfile"
)

// cutKey splits the key of a figure, "metric,filter"; false for other keys and for standard errors.
func cutKey(key string) (metric, filter string, ok bool) {
	metric, filter, ok = strings.Cut(key, ",")
	return metric, filter, ok && !strings.HasSuffix(metric, "_stderr")
}

// Key is a key of a task file.
type Key struct {
	Name    string `json:"name"`
	Within  string `json:"within"`  // the key that it stands below; "" at the top
	Default string `json:"default"` // "" where there is none
	Meaning string `json:"meaning"`
}

// Keys lists the keys that a task file may have, in the order in which people need them.
func Keys() []Key {
	var list []Key
	for _, k := range taskfile.Keys() {
		list = append(list, Key(k))
	}
	return list
}
