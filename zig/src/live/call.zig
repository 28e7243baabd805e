//! A call of more rows than the delta has room for: they come as a part, and never pass the delta or the log.
//!
//! Whoever calls reserves, makes an ordinary index of the rows while others write and search, and comes back. Then the ids
//! are held against what lives at that moment, and one root names the part, the dead rows whose place it takes, and the name
//! of the call. Dead rows of the delta stand in the new log behind those that it carries over, so the root alone says it all.
const std = @import("std");
const adopting = @import("adopt.zig");
const checkpoints = @import("checkpoint.zig");
const diagnostics = @import("diagnostic.zig");
const find = @import("find.zig");
const folder = @import("folder.zig");
const rows_payload = @import("rows.zig");
const writing = @import("write.zig");
const Diagnostic = diagnostics.Diagnostic;
const Done = folder.Done;
const Error = diagnostics.Error;
const Row = folder.Row;

/// Numbers of the rows of one call.
pub const Numbers = struct {
    first: u64,
    count: u64,

    pub fn holds(self: Numbers, number: i64) bool {
        return number >= 0 and @as(u64, @intCast(number)) -% self.first < self.count;
    }
};

pub const Call = struct {
    /// Without vectors and metadata, which the part has; where the index numbers them without ids.
    rows: rows_payload.Rows,
    /// Of those the number of the first, as `reserve` gave it.
    first: u64 = 0,
    /// A folder, complete and synced but for ids.find.
    path: []const u8,
    uuid: []const u8,
    /// In the order of its vertices; borrowed until the folder closes or a fold takes the part away.
    ids: find.Ids,
};

/// The folder is live from here on. Numbers are given out for good: also where the call fails no row gets them.
pub fn reserve(live: anytype, given: rows_payload.Rows, diagnostic: *Diagnostic) Error!Done {
    live.mutex.lock();
    defer live.mutex.unlock();
    try live.check_writable(diagnostic);
    if (try writing.answered(live, &given, diagnostic)) |done| return done;
    try writing.check_kind_of_rows(live, &given, diagnostic);
    const numbered = given.is_numbered();
    if (!numbered and (!given.is_upsert or given.kind == .row)) {
        // It is looked at again when the part is there; but who cannot come now need not make one.
        var gone: std.ArrayList(Row) = .empty;
        defer gone.deinit(live.allocator);
        defer writing.put_back(live, gone.items);
        if (try writing.take_former(live, &given, null, &gone, diagnostic)) |refused| return refused;
    }
    if (!live.is_live) try adopting.adopt(live, diagnostic);
    const first = live.next_row;
    if (numbered) {
        try live.reserved.append(live.allocator, .{ .first = first, .count = given.count });
        live.next_row += given.count;
    }
    return writing.told(live, .{ .row = first, .sequence = live.sequence });
}

pub fn commit(live: anytype, call: Call, diagnostic: *Diagnostic) Error!Done {
    const allocator = live.allocator;
    const count = call.rows.count;
    if (call.ids.len() != count or count == 0 or (call.ids == .strings) != (call.rows.kind == .strings)) {
        diagnostic.argument = "ids";
        diagnostic.say("a part of {d} ids was made for {d} rows", .{ call.ids.len(), count });
        return error.InvalidArgument;
    }
    var finder_bytes: ?[]align(4) u8 = try find.write(live, call.path, call.ids, diagnostic);
    defer if (finder_bytes) |bytes| allocator.free(bytes);
    live.mutex.lock();
    defer live.mutex.unlock();
    while (live.syncing) live.changed.wait(&live.mutex); // from here on the lock is kept
    try live.check_writable(diagnostic);
    if (try writing.answered(live, &call.rows, diagnostic)) |done| return done;
    try writing.check_kind_of_rows(live, &call.rows, diagnostic);
    const numbered = call.rows.is_numbered();
    const reserved = if (numbered) try reservation_of(live, &call, diagnostic) else null;
    var gone: std.ArrayList(Row) = .empty;
    defer gone.deinit(allocator);
    errdefer writing.put_back(live, gone.items);
    if (!numbered) if (try writing.take_former(live, &call.rows, null, &gone, diagnostic)) |refused| return refused;

    var parts: @TypeOf(live.parts) = .empty;
    errdefer parts.deinit(allocator);
    try parts.ensureTotalCapacity(allocator, live.parts.items.len + 1);
    parts.appendSliceAssumeCapacity(live.parts.items);
    parts.appendAssumeCapacity(try live.new_part(call.path, call.uuid, count, null));
    const made = &parts.items[live.parts.items.len];
    errdefer made.deinit(live);
    made.ids = call.ids;
    made.finder_owned = finder_bytes;
    finder_bytes = null;
    made.finder = find.Finder.parse(made.finder_owned.?, count) catch unreachable; // as we just made it

    const before = .{ live.sequence, live.kind, live.has_rows, live.requests };
    live.requests = try live.requests.with(allocator, .{ .name = call.rows.request, .sequence = live.sequence + 1, .rows = count, .row = call.first });
    errdefer {
        // Where the root may be on the device nonetheless, the writer is poisoned and shows what it showed.
        live.requests.deinit(allocator);
        live.sequence, live.kind, live.has_rows, live.requests = before;
    }
    live.sequence += 1;
    live.kind = call.rows.kind;
    live.has_rows = true;
    try checkpoints.make_anew(live, parts.items, live.delta, diagnostic);
    var requests = before[3];
    requests.deinit(allocator);
    var former = live.parts;
    {
        live.seen.lock();
        defer live.seen.unlock();
        live.parts = parts;
        live.show_all(); // rows that waited for their sync, too: the new root holds them
    }
    former.deinit(allocator);
    if (reserved) |i| _ = live.reserved.swapRemove(i);
    // No row has another number than before: whoever read some still finds them.
    return writing.told(live, .{ .rows = count, .replaced = gone.items.len, .row = call.first, .sequence = live.sequence });
}

/// Which of the reservations is that of the call.
fn reservation_of(live: anytype, call: *const Call, diagnostic: *Diagnostic) Error!usize {
    for (live.reserved.items, 0..) |one, i| {
        if (one.first != call.first or one.count != call.rows.count) continue;
        for (call.ids.numbers) |number| {
            if (!one.holds(number)) break;
        } else return i;
    }
    diagnostic.argument = "ids";
    diagnostic.say("{d} numbers from {d} on were not reserved", .{ call.rows.count, call.first });
    return error.InvalidArgument;
}

test {
    std.testing.refAllDecls(@This());
}
