// Package records reads files of edits.
package records
