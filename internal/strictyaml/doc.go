// Package strictyaml reads YAML that strangers wrote into a small tree of nodes with positions, and collects
// every fault of a file instead of stopping at the first one.
//
// Parse turns text into one tree per document: lists, maps in the order of the file, scalars as text, aliases resolved.
// Size, depth and the number of nodes that aliases expand to are bounded before anything is allocated for them.
// A Reader walks a tree on behalf of a schema: it converts scalars to the wanted type, names the known keys where an
// unknown one stands, and notes each fault with line, column and what would be right. Its Err is a *Problems, which
// prints one line per fault, or the lines of the file with a mark under each place.
package strictyaml
