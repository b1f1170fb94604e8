// Package words measures generated texts.
package words
