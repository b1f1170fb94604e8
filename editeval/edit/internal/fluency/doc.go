// Package fluency measures generated texts.
package fluency
