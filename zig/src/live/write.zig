//! What a writer does to rows. A call goes: its ids are looked up, a record is appended to the log, what it does is applied
//! to what the writer knows, and seen by searches once the record is as durable as the folder's `durability` says.
const std = @import("std");
const adopting = @import("adopt.zig");
const checkpoints = @import("checkpoint.zig");
const delta_room = @import("delta.zig");
const diagnostics = @import("diagnostic.zig");
const folder = @import("folder.zig");
const log_file = @import("log.zig");
const payloads = @import("payload.zig");
const requests_room = @import("requests.zig");
const rows_payload = @import("rows.zig");
const find = @import("find.zig");
const Diagnostic = diagnostics.Diagnostic;
const Done = folder.Done;
const Error = diagnostics.Error;
const Ids = find.Ids;
const Row = folder.Row;

pub fn delete(live: anytype, ids: Ids, diagnostic: *Diagnostic) Error!Done {
    live.mutex.lock();
    defer live.mutex.unlock();
    try live.check_writable(diagnostic);
    try check_kind(live, ids, diagnostic);
    var rows: std.ArrayList(Row) = .empty;
    defer rows.deinit(live.allocator);
    errdefer put_back(live, rows.items);
    for (0..ids.len()) |i| {
        const row = try live.find_row(ids, i, diagnostic) orelse continue;
        try take(live, &rows, row);
    }
    return write_delete(live, &rows, diagnostic);
}

pub fn delete_rows(live: anytype, layout: u64, given: []const Row, diagnostic: *Diagnostic) Error!Done {
    live.mutex.lock();
    defer live.mutex.unlock();
    try live.check_writable(diagnostic);
    if (layout != live.layout) return .{ .outcome = .stale, .sequence = live.sequence };
    var rows: std.ArrayList(Row) = .empty;
    defer rows.deinit(live.allocator);
    errdefer put_back(live, rows.items);
    for (given) |row| {
        const count: u64 = if (row.part == delta_room.part_number)
            live.delta.shown_rows
        else if (row.part < live.parts.items.len) live.parts.items[row.part].n else 0;
        if (row.vertex >= count) {
            diagnostic.argument = "vertices";
            diagnostic.say("vertex {d} of part {d} is no row", .{ row.vertex, row.part });
            return error.InvalidArgument;
        }
        try take(live, &rows, row);
    }
    return write_delete(live, &rows, diagnostic);
}

/// Before the first row any kind of id may come.
fn check_kind(live: anytype, ids: Ids, diagnostic: *Diagnostic) Error!void {
    if (ids.len() == 0) return;
    const is_string = (live.kind orelse return) == .strings;
    if (is_string == (ids == .strings)) return;
    diagnostic.argument = "ids";
    diagnostic.say("the ids of this index are {s}", .{if (is_string) "strings" else "whole numbers"});
    return error.InvalidArgument;
}

fn take(live: anytype, rows: *std.ArrayList(Row), row: Row) Error!void {
    try rows.ensureUnusedCapacity(live.allocator, 1);
    if (mark(live, row)) rows.appendAssumeCapacity(row);
}

fn mark(live: anytype, row: Row) bool {
    if (row.part == delta_room.part_number) return live.delta.mark_gone(row.vertex);
    return live.parts.items[row.part].gone.insert_new(row.vertex);
}

pub fn put_back(live: anytype, rows: []const Row) void {
    for (rows) |row| {
        if (row.part == delta_room.part_number) live.delta.unmark_gone(row.vertex) else live.parts.items[row.part].gone.remove(row.vertex);
    }
}

/// The first write makes the folder live. The root that this writes holds none of the rows taken: their record comes behind.
fn make_live(live: anytype, rows: []const Row, diagnostic: *Diagnostic) Error!void {
    if (live.is_live) return;
    put_back(live, rows);
    defer for (rows) |row| {
        _ = mark(live, row);
    };
    try adopting.adopt(live, diagnostic);
}

/// With the lock held; `rows` are taken already.
fn write_delete(live: anytype, rows: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!Done {
    if (rows.items.len > 0) {
        try make_live(live, rows.items, diagnostic);
        const bytes = try payloads.encode_delete(live, rows.items);
        defer live.allocator.free(bytes);
        try log_and_show(live, bytes, .delete, @intCast(rows.items.len), rows.items, null, diagnostic);
    }
    const count = rows.items.len;
    rows.clearRetainingCapacity(); // written: nothing to put back
    return acknowledge(live, .{ .rows = count, .sequence = live.sequence }, count > 0, diagnostic);
}

/// The record goes to the log; then its rows are the delta's, and those that it takes away are dead, at once or when it is
/// synced. Nothing fails once the record is written.
fn log_and_show(live: anytype, bytes: []u8, kind: log_file.Kind, count: u32, gone: []const Row, record: ?*delta_room.Record, diagnostic: *Diagnostic) Error!void {
    if (record != null) {
        live.seen.lock();
        defer live.seen.unlock();
        try live.delta.reserve(count);
    }
    const waits = live.options.durability == .sync;
    if (waits) try live.waiting.ensureUnusedCapacity(live.allocator, 1);
    const kept = if (waits) try live.allocator.dupe(Row, gone) else null;
    errdefer if (kept) |rows| live.allocator.free(rows);
    try live.append(bytes, kind, count, diagnostic);
    live.seen.lock();
    defer live.seen.unlock();
    if (record) |one| live.delta.append(one);
    const records: u32 = @intCast(live.delta.records.items.len);
    if (kept) |rows| {
        live.waiting.appendAssumeCapacity(.{ .sequence = live.sequence, .rows = rows, .records = records });
    } else {
        live.show(gone);
        live.delta.show(records);
        live.shown_sequence = live.sequence;
    }
}

pub fn acknowledge(live: anytype, done: Done, wrote: bool, diagnostic: *Diagnostic) Error!Done {
    if (live.options.durability == .sync) try live.wait_until_synced(done.sequence, diagnostic);
    // Outside a checkpoint nothing is lost where one fails: the log only goes on growing for a while.
    if (wrote and live.position.offset >= live.checkpoint_at and !live.poisoned) {
        var ignored: Diagnostic = .{};
        checkpoints.make(live, &ignored) catch {
            live.checkpoint_at = 2 * live.position.offset;
        };
    }
    return told(live, done);
}

/// What became of a call, and how the folder is after it.
pub fn told(live: anytype, done: Done) Done {
    var all = done;
    all.durable = live.synced_sequence >= done.sequence;
    all.layout = live.layout;
    all.row_count = live.delta.shown_rows;
    for (live.parts.items) |part| all.row_count += part.n;
    all.delta_bytes = live.delta.bytes;
    all.delta_bytes_max = live.options.delta_bytes;
    return all;
}

/// Where rows were when a caller read them.
pub const Expected = struct { layout: u64, rows: []const Row };

/// What becomes of a call that changes nothing: it has no rows, or one of its name was done before.
pub fn answered(live: anytype, given: *const rows_payload.Rows, diagnostic: *Diagnostic) Error!?Done {
    if (given.request.len > 0) if (live.requests.find(given.request)) |before| {
        return try acknowledge(live, .{ .outcome = .repeated, .rows = before.rows, .sequence = before.sequence, .row = before.row }, false, diagnostic);
    };
    return if (given.count > 0) null else try acknowledge(live, .{ .sequence = live.sequence }, false, diagnostic);
}

pub fn check_kind_of_rows(live: anytype, given: *const rows_payload.Rows, diagnostic: *Diagnostic) Error!void {
    const kind = live.kind orelse return;
    if (kind == given.kind) return;
    diagnostic.argument = "ids";
    diagnostic.say("the ids of this index are {s}", .{switch (kind) {
        .row => "row numbers, which it gives itself",
        .numbers => "whole numbers",
        .strings => "strings",
    }});
    return error.InvalidArgument;
}

/// Takes the rows whose place these take. Where one of them cannot come nothing is taken, and it is told which.
pub fn take_former(live: anytype, rows: *const rows_payload.Rows, expected: ?Expected, gone: *std.ArrayList(Row), diagnostic: *Diagnostic) Error!?Done {
    const is_numbered = rows.is_numbered();
    for (0..rows.count) |i| {
        const found = try live.find_row(rows.ids, i, diagnostic);
        var refused: ?folder.Outcome = null;
        if (expected) |places| if (found == null or !std.meta.eql(found.?, places.rows[i])) {
            refused = .stale;
        };
        if (refused == null) if (found) |row| {
            if (rows.is_upsert) try take(live, gone, row) else refused = .duplicate;
        } else if (rows.kind == .row and !is_numbered and !live.gave(rows.ids.numbers[i])) {
            refused = .no_row_number;
        };
        const outcome = refused orelse continue;
        put_back(live, gone.items);
        gone.clearRetainingCapacity();
        return .{ .outcome = outcome, .row = i, .sequence = live.sequence };
    }
    return null;
}

/// With `expected` the rows take the place of those, and nothing is done where one of them is there no more: Done.outcome.
pub fn insert(live: anytype, given: rows_payload.Rows, expected: ?Expected, diagnostic: *Diagnostic) Error!Done {
    live.mutex.lock();
    defer live.mutex.unlock();
    try live.check_writable(diagnostic);
    const count = given.count;
    const allocator = live.allocator;
    if (given.vectors.len != live.shape().row_bytes() * count or given.request.len > requests_room.name_bytes_max) {
        diagnostic.argument = "vectors";
        diagnostic.say("{d} rows of {d} bytes were given {d} bytes of vectors", .{ count, live.shape().row_bytes(), given.vectors.len });
        return error.InvalidArgument;
    }
    if (try answered(live, &given, diagnostic)) |done| return done;
    if (expected) |places| {
        std.debug.assert(given.is_upsert and places.rows.len == count);
        if (places.layout != live.layout) return .{ .outcome = .stale, .sequence = live.sequence };
    }
    var rows = given;
    try check_kind_of_rows(live, &given, diagnostic);
    const assigned = if (given.is_numbered()) try allocator.alloc(i64, count) else null;
    defer if (assigned) |numbers| allocator.free(numbers);
    if (assigned) |numbers| {
        for (numbers, 0..) |*number, i| number.* = @intCast(live.next_row + i);
        rows.ids = .{ .numbers = numbers };
    }

    var gone: std.ArrayList(Row) = .empty;
    defer gone.deinit(allocator);
    errdefer put_back(live, gone.items);
    if (try take_former(live, &rows, expected, &gone, diagnostic)) |refused| return refused;
    const bytes = try rows_payload.encode(allocator, rows, count);
    const record = delta_room.Record.create(allocator, bytes, count) catch |err| return switch (err) {
        error.Damaged => {
            diagnostic.argument = "ids";
            diagnostic.say("offsets of strings do not ascend within their bytes", .{});
            return error.InvalidArgument;
        },
        error.OutOfMemory => error.OutOfMemory,
    };
    var is_written = false;
    errdefer if (!is_written) record.release(allocator);
    const needed = delta_room.Delta.cost(bytes.len, count);
    if (live.delta.bytes + needed > live.options.delta_bytes) {
        put_back(live, gone.items);
        gone.clearRetainingCapacity();
        record.release(allocator);
        return .{ .outcome = .full, .row = needed, .sequence = live.sequence };
    }
    try make_live(live, gone.items, diagnostic);
    const name = if (given.request.len > 0) try allocator.dupe(u8, given.request) else null;
    errdefer if (!is_written) if (name) |text| allocator.free(text);
    if (name != null) try live.requests.items.ensureUnusedCapacity(allocator, 1);
    try log_and_show(live, bytes, .rows, count, gone.items, record, diagnostic);
    is_written = true;
    const first: u64 = if (assigned != null) live.next_row else 0;
    if (assigned != null) live.next_row += count;
    live.kind = rows.kind;
    live.has_rows = true;
    if (name) |text| live.requests.add_owned(allocator, text, live.sequence, count, first);
    const replaced = gone.items.len;
    gone.clearRetainingCapacity();
    return acknowledge(live, .{ .rows = count, .replaced = replaced, .row = first, .sequence = live.sequence }, true, diagnostic);
}
