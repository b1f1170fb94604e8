//go:build !linux

package main

import (
	"runtime"
	"testing"
)

// watch reports all the time that something may have changed.
func watch(*testing.T, string) (changed <-chan struct{}, stop func()) {
	ready := make(chan struct{})
	done := make(chan struct{})
	go func() {
		for {
			select {
			case ready <- struct{}{}:
				runtime.Gosched()
			case <-done:
				return
			}
		}
	}()

	return ready, func() { close(done) }
}
