//! Reading what there is: tombstones of the parts, and every record of the log.
const std = @import("std");
const dead_file = @import("dead.zig");
const delta_room = @import("delta.zig");
const diagnostics = @import("diagnostic.zig");
const log_file = @import("log.zig");
const payloads = @import("payload.zig");
const root_file = @import("root.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// Tombstones and the whole log, with the lock held, into a new delta. A caller that fails puts back what it wants to keep.
pub fn replay_all(live: anytype, diagnostic: *Diagnostic) Error!log_file.End {
    const delta = try delta_room.Delta.create(live.allocator);
    live.delta.release();
    live.delta = delta;
    for (live.parts.items) |*part| {
        part.dead.clear();
        if (part.file) |name| {
            const bytes = try diagnostics.read_file(live.allocator, live.store, name, dead_file.file_bytes(part.n), diagnostic) orelse
                return diagnostics.damaged(diagnostic, name, "is missing", .{});
            defer live.allocator.free(bytes);
            dead_file.parse(bytes, part.uuid, &part.dead) catch |err| return switch (err) {
                error.Damaged => diagnostics.damaged(diagnostic, name, "is damaged", .{}),
                error.NewerVersion => diagnostics.newer(diagnostic, name),
            };
        }
        part.dead_count = part.dead.count();
        part.file_count = part.dead_count;
        if (live.options.writable) @memcpy(part.gone.words, part.dead.words);
    }
    live.sequence = live.root_sequence;
    return replay(live, true, diagnostic);
}

/// The log, from its start or from where it was left.
pub fn replay(live: anytype, from_start: bool, diagnostic: *Diagnostic) Error!log_file.End {
    const name = live.log_name.?;
    const first = if (from_start) 0 else live.position.offset;
    const bytes = try diagnostics.read_from(live.allocator, live.store, name, first, std.math.maxInt(u63), diagnostic) orelse
        return diagnostics.damaged(diagnostic, name, "is missing", .{});
    defer live.allocator.free(bytes);
    if (from_start) {
        live.log_header = log_file.Header.parse(bytes) catch |err| return switch (err) {
            error.BadHeader => diagnostics.damaged(diagnostic, name, "has a damaged header", .{}),
            error.NewerVersion => diagnostics.newer(diagnostic, name),
        };
        var uuid: [16]u8 = undefined;
        _ = std.fmt.hexToBytes(&uuid, &live.uuid) catch return diagnostics.damaged(diagnostic, root_file.file_name, "has a damaged uuid", .{});
        if (!std.mem.eql(u8, &uuid, &live.log_header.uuid)) return diagnostics.damaged(diagnostic, name, "is the log of another index", .{});
        if (live.log_header.first_sequence != live.root_sequence + 1) return diagnostics.damaged(diagnostic, name, "begins elsewhere than {s} says", .{root_file.file_name});
        live.position = .begin(&live.log_header);
        live.last_is_promise = false;
    }
    var scanner: log_file.Scanner = .{ .bytes = bytes, .first = first, .position = live.position };
    while (scanner.next()) |record| {
        try apply(live, &record, diagnostic);
        live.position = scanner.position;
        live.sequence = record.sequence;
        live.last_is_promise = record.kind == .promise;
    }
    return scanner.end() catch diagnostics.damaged(diagnostic, name, "is damaged at byte {d}", .{scanner.position.offset});
}

fn apply(live: anytype, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
    switch (record.kind) {
        .promise => {},
        .delete => try apply_delete(live, record, diagnostic),
        .rows, .carried => try apply_rows(live, record, diagnostic),
        .buried => {
            for (0..record.rows) |i| {
                if (record.payload.len < 4 * (i + 1)) return unreadable(live, record, diagnostic);
                const row = std.mem.readInt(u32, record.payload[4 * i ..][0..4], .little);
                if (row >= live.delta.rows) return unreadable(live, record, diagnostic);
                _ = live.delta.mark_gone(row);
                live.delta.mark_dead(row);
            }
        },
        _ => return diagnostics.newer(diagnostic, live.log_name.?),
    }
}

fn unreadable(live: anytype, record: *const log_file.Record, diagnostic: *Diagnostic) Error {
    return diagnostics.damaged(diagnostic, live.log_name.?, "has a record {d} that cannot be", .{record.sequence});
}

fn apply_delete(live: anytype, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
    const ids = payloads.decode_ids(live.allocator, record.payload, record.rows) catch |err| return switch (err) {
        error.Damaged => unreadable(live, record, diagnostic),
        error.OutOfMemory => error.OutOfMemory,
    };
    defer payloads.free_ids(live.allocator, ids);
    for (0..ids.len()) |i| {
        const row = try live.find_row(ids, i, diagnostic) orelse
            return diagnostics.damaged(diagnostic, live.log_name.?, "deletes an id in record {d} that no row has", .{record.sequence});
        bury(live, row);
    }
}

/// Gone and dead at once: nobody waits for what was read.
fn bury(live: anytype, row: @import("folder.zig").Row) void {
    if (row.part == delta_room.part_number) {
        _ = live.delta.mark_gone(row.vertex);
    } else if (live.options.writable) live.parts.items[row.part].gone.insert(row.vertex);
    live.show(&.{row});
}

fn apply_rows(live: anytype, record: *const log_file.Record, diagnostic: *Diagnostic) Error!void {
    const allocator = live.allocator;
    const bytes = try allocator.alignedAlloc(u8, .@"8", log_file.record_bytes(record.payload.len));
    @memcpy(bytes[log_file.record_header_bytes..], record.payload);
    const taken = delta_room.Record.create(allocator, bytes, record.rows) catch |err| return switch (err) {
        error.Damaged => unreadable(live, record, diagnostic),
        error.OutOfMemory => error.OutOfMemory,
    };
    var is_taken = false;
    errdefer if (!is_taken) taken.release(allocator);
    const rows = &taken.rows;
    if (rows.vectors.len != live.shape().row_bytes() * rows.count) return unreadable(live, record, diagnostic);
    if (live.kind) |kind| if (kind != rows.kind) return unreadable(live, record, diagnostic);
    try live.delta.reserve(rows.count);
    if (rows.request.len > 0) {
        const first: u64 = if (rows.kind == .row and rows.count > 0) @intCast(@max(0, rows.ids.numbers[0])) else 0;
        if (record.kind == .rows) try live.requests.add(allocator, rows.request, record.sequence, rows.count, first);
    }
    if (record.kind == .rows) {
        for (0..rows.count) |i| {
            const row = try live.find_row(rows.ids, i, diagnostic) orelse continue;
            if (!rows.is_upsert) return diagnostics.damaged(diagnostic, live.log_name.?, "inserts an id in record {d} that a row has", .{record.sequence});
            bury(live, row);
        }
    }
    live.kind = rows.kind;
    live.has_rows = true;
    if (rows.kind == .row) {
        for (rows.ids.numbers) |id| live.next_row = @max(live.next_row, @as(u64, @intCast(@max(0, id))) + 1);
        if (live.next_row > root_file.next_row_max) return unreadable(live, record, diagnostic);
    }
    live.delta.append(taken);
    is_taken = true;
    live.delta.show(@intCast(live.delta.records.items.len));
}
