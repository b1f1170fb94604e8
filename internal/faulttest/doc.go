// Package faulttest is the fault campaign: tests that run the real program, compress, in a child process, break
// something at a chosen moment, and check what is left and what a resumed run makes of it. It has no code of
// its own; run it with
//
//	go test ./internal/faulttest                                                   # a few points of every verb
//	go test ./internal/faulttest -run Campaign -timeout 0 -args -long -results F   # the whole campaign
//	go test ./internal/faulttest -run Table -args -table docs/evidence/faults.md -results F # the page about it
//
// F holds the results of the campaign; a second call goes on from it.
//
// # How a moment is chosen
//
// Every system call on a file that a verb makes is seen through ptrace, behind a seccomp filter that lets all
// others pass at full speed. A run that is left alone counts them; a fault is then put at the k-th of a kind:
// the process group is killed before it, or after a part of its bytes, or the call fails with an error, or
// gives fewer bytes than were asked for. This is the same moment in every run of a verb that computes on one
// thread, and it is where the state on the disk changes, so that moments between two calls add nothing. Disks
// that fill up are real ones: a small tmpfs.
//
// # What is checked
//
// A killed or failed run leaves nothing under a final name that is not complete. It ends, where it was not
// killed, with exit code 1 and one line that names a file. The same command with --resume, or again where a
// verb has no such flag, ends with the bytes of a run that was left alone, and with no other file beside them.
// Figures of time and memory are left out of the comparison.
//
// Tracing needs Linux on amd64 and the right to trace children; without them its tests are skipped with one line.
package faulttest
