//! The filter room: columns in placement order, predicate programs over them, and the answer to "does this vertex
//! pass" that stands before every read. Nothing here knows of Arrow, strings or dictionaries: whoever fills the
//! columns has turned them into numbers, and strings into codes whose order is the order of the strings.
const column = @import("column.zig");
const predicate = @import("predicate.zig");

pub const Column = column.Column;
pub const ColumnType = column.ColumnType;
pub const Columns = column.Columns;
pub const Filter = predicate.Filter;
pub const CompileError = predicate.CompileError;
pub const Diagnostic = @import("column.zig").Diagnostic;
pub const Matches = predicate.Matches;
pub const program = @import("program.zig");
pub const write_postings = @import("postings_writer.zig").write;

test {
    _ = @import("filter_test.zig");
    _ = column;
    _ = predicate;
    _ = program;
    _ = @import("posting.zig");
    _ = @import("postings_test.zig");
}
