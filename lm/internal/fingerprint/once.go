package fingerprint

import "sync"

// Once is a fingerprint that is computed when it is first asked for, and kept unless that fails. The zero value
// is ready.
type Once struct {
	mu  sync.Mutex
	hex string
}

// Get gives the fingerprint, from compute where there is none yet.
func (o *Once) Get(compute func() (string, error)) (hex string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hex == "" {
		o.hex, err = compute()
	}
	return o.hex, err
}
