// Package trace does causal tracing: which state of a noisy run brings the answer back.
package trace
