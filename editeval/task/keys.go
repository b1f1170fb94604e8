package task

import "strings"

// cutKey splits the key of a figure, "metric,filter"; false for other keys and for standard errors.
func cutKey(key string) (metric, filter string, ok bool) {
	metric, filter, ok = strings.Cut(key, ",")
	return metric, filter, ok && !strings.HasSuffix(metric, "_stderr")
}
