//! What records hold behind their header: ids, in the bytes in which Arrow has them.
const std = @import("std");
const find = @import("find.zig");
const log_file = @import("log.zig");
const Row = @import("folder.zig").Row;
const Ids = find.Ids;

const kind_numbers = 0;
const kind_strings = 1;

/// A record with room for its header; `rows` say parts and vertices, whose ids the folder knows.
pub fn encode_delete(live: anytype, rows: []const Row) error{OutOfMemory}![]u8 {
    const is_string = live.id_of(rows[0])[0] == .strings;
    var size: usize = 8 + 8 * rows.len;
    if (is_string) {
        size += 8;
        for (rows) |row| {
            const ids, const at = live.id_of(row);
            size += ids.text(at).len;
        }
    }
    size = std.mem.alignForward(usize, size, 8);
    const bytes = try live.allocator.alloc(u8, log_file.record_bytes(size));
    const payload = bytes[log_file.record_header_bytes..];
    @memset(payload, 0);
    std.mem.writeInt(u32, payload[0..4], if (is_string) kind_strings else kind_numbers, .little);
    if (!is_string) {
        for (rows, 0..) |row, i| {
            const ids, const at = live.id_of(row);
            std.mem.writeInt(i64, payload[8 + 8 * i ..][0..8], ids.numbers[at], .little);
        }
        return bytes;
    }
    const heap = payload[8 + 8 * (rows.len + 1) ..];
    var end: usize = 0;
    for (rows, 0..) |row, i| {
        std.mem.writeInt(u64, payload[8 + 8 * i ..][0..8], end, .little);
        const ids, const at = live.id_of(row);
        const text = ids.text(at);
        @memcpy(heap[end..][0..text.len], text);
        end += text.len;
    }
    std.mem.writeInt(u64, payload[8 + 8 * rows.len ..][0..8], end, .little);
    return bytes;
}

/// The ids of a payload; `free_ids` gives them back, the bytes of strings stay the payload's.
pub fn decode_ids(allocator: std.mem.Allocator, payload: []const u8, rows: u32) error{ Damaged, OutOfMemory }!Ids {
    if (payload.len < 8) return error.Damaged;
    const kind = std.mem.readInt(u32, payload[0..4], .little);
    const entries: usize = switch (kind) {
        kind_numbers => rows,
        kind_strings => @as(usize, rows) + 1,
        else => return error.Damaged,
    };
    if ((payload.len - 8) / 8 < entries) return error.Damaged;
    const numbers = try allocator.alloc(i64, entries);
    errdefer allocator.free(numbers);
    for (numbers, 0..) |*number, i| number.* = std.mem.readInt(i64, payload[8 + 8 * i ..][0..8], .little);
    if (kind == kind_numbers) return .{ .numbers = numbers };
    const ids: Ids = .{ .strings = .{ .offsets = numbers, .bytes = payload[8 + 8 * entries ..] } };
    if (!ids.is_whole()) return error.Damaged;
    return ids;
}

pub fn free_ids(allocator: std.mem.Allocator, ids: Ids) void {
    switch (ids) {
        .numbers => |numbers| allocator.free(numbers),
        .strings => |strings| allocator.free(strings.offsets),
    }
}

test "ids come back from a record; a payload cut short does not decode" {
    const allocator = std.testing.allocator;
    const Holder = struct {
        allocator: std.mem.Allocator,
        ids: Ids,

        fn id_of(self: *const @This(), row: Row) struct { Ids, usize } {
            return .{ self.ids, row.vertex };
        }
    };
    const numbers = [_]i64{ 5, -7, std.math.maxInt(i64), std.math.minInt(i64) + 1 };
    const strings: Ids = .{ .strings = .{ .offsets = &.{ 0, 0, 3, 5, 6 }, .bytes = "abcdef" } };
    for ([_]Ids{ .{ .numbers = &numbers }, strings }) |ids| {
        const holder: Holder = .{ .allocator = allocator, .ids = ids };
        const rows = [_]Row{ .{ .part = 0, .vertex = 2 }, .{ .part = 0, .vertex = 0 }, .{ .part = 0, .vertex = 3 } };
        const bytes = try encode_delete(&holder, &rows);
        defer allocator.free(bytes);
        const payload = bytes[log_file.record_header_bytes..];
        const back = try decode_ids(allocator, payload, rows.len);
        defer free_ids(allocator, back);
        try std.testing.expectEqual(rows.len, back.len());
        for (rows, 0..) |row, i| switch (ids) {
            .numbers => try std.testing.expectEqual(numbers[row.vertex], back.numbers[i]),
            .strings => try std.testing.expectEqualStrings(ids.text(row.vertex), back.text(i)),
        };
        try std.testing.expectError(error.Damaged, decode_ids(allocator, payload[0 .. 8 + 8 * 2], rows.len));
        try std.testing.expectError(error.Damaged, decode_ids(allocator, payload[0..4], rows.len));
        payload[0] = 9;
        try std.testing.expectError(error.Damaged, decode_ids(allocator, payload, rows.len));
    }
}
