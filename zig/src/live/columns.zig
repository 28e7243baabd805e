//! Columns that come to an index that has rows. What stands in parts and in the log stays as it is: a part, and a record that
//! brought rows, may lack the last columns of the schema, and whoever reads it knows what its rows have in them. So one root
//! with another schema is all that changes, written as at every checkpoint.
const std = @import("std");
const adopting = @import("adopt.zig");
const checkpoints = @import("checkpoint.zig");
const diagnostics = @import("diagnostic.zig");
const folder = @import("folder.zig");
const root_file = @import("root.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// A root holds parts and requests beside it.
pub const schema_bytes_max = root_file.bytes_max / 2;

pub fn set(live: anytype, text: []const u8, version: u64, diagnostic: *Diagnostic) Error!folder.Done {
    live.mutex.lock();
    defer live.mutex.unlock();
    while (live.syncing) live.changed.wait(&live.mutex); // from here on the lock is kept
    try live.check_writable(diagnostic);
    if (live.schema_version != version) return .{ .outcome = .stale, .sequence = live.sequence };
    if (text.len > schema_bytes_max) {
        diagnostic.say("columns and what they begin with take {d} bytes in the root, at most {d} fit", .{ text.len, schema_bytes_max });
        return error.InvalidArgument;
    }
    const before = live.schema;
    const had_columns = live.has_columns;
    const copy = try live.allocator.dupe(u8, text);
    live.schema = copy;
    live.has_columns = true;
    write_root(live, diagnostic) catch |err| {
        // Where the root may be on the device nonetheless, the writer is poisoned and shows what it showed.
        live.schema = before;
        live.has_columns = had_columns;
        live.allocator.free(copy);
        return err;
    };
    if (before) |one| live.allocator.free(one);
    live.seen.lock();
    defer live.seen.unlock();
    live.schema_version += 1;
    return .{ .sequence = live.sequence, .durable = true };
}

fn write_root(live: anytype, diagnostic: *Diagnostic) Error!void {
    if (!live.is_live) return adopting.adopt(live, diagnostic);
    try checkpoints.make_anew(live, live.parts.items, live.delta, diagnostic);
    live.seen.lock();
    defer live.seen.unlock();
    live.show_all(); // rows that waited for their sync, too: the new root holds them
}

test {
    std.testing.refAllDecls(@This());
}
