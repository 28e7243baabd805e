//! The contents of log records, behind their header: rows that come, and ids that go, in the bytes in which Arrow has them.
const std = @import("std");
const builtin = @import("builtin");
const find = @import("find.zig");
const wal_file = @import("wal.zig");
const Ids = find.Ids;

comptime {
    std.debug.assert(builtin.cpu.arch.endian() == .little); // payloads are used as they lie
}

const header_bytes = 48;
const flag_upsert = 1;

/// The kind of ids. A folder has one.
pub const Kind = enum(u32) {
    /// Numbers that the index gives, one after the other, none twice.
    row = 0,
    numbers = 1,
    strings = 2,
};

pub const Rows = struct {
    count: u32 = 0,
    kind: Kind,
    is_upsert: bool = false,
    ids: Ids,
    vectors: []const u8,
    metadata: []const u8 = "",
    request: []const u8 = "",

    /// Whether they come without ids: the index numbers them.
    pub fn is_numbered(self: *const Rows) bool {
        return self.kind == .row and !self.is_upsert;
    }
};

fn padded(bytes: usize) usize {
    return std.mem.alignForward(usize, bytes, 8);
}

fn ids_bytes(ids: Ids, count: u32) usize {
    return switch (ids) {
        .numbers => 8 * @as(usize, count),
        .strings => |strings| 8 * (@as(usize, count) + 1) + @as(usize, @intCast(strings.offsets[count] - strings.offsets[0])),
    };
}

/// A record with room for its header.
pub fn encode(allocator: std.mem.Allocator, rows: Rows, count: u32) error{OutOfMemory}![]align(8) u8 {
    const sizes = [4]usize{ ids_bytes(rows.ids, count), rows.vectors.len, rows.metadata.len, rows.request.len };
    var total: usize = header_bytes;
    for (sizes) |size| total += padded(size);
    const bytes = try allocator.alignedAlloc(u8, .@"8", wal_file.record_bytes(total));
    const payload = bytes[wal_file.record_header_bytes..];
    @memset(payload[0..header_bytes], 0);
    std.mem.writeInt(u32, payload[0..4], @intFromEnum(rows.kind), .little);
    std.mem.writeInt(u32, payload[4..8], if (rows.is_upsert) flag_upsert else 0, .little);
    for (sizes, 0..) |size, i| std.mem.writeInt(u64, payload[8 + 8 * i ..][0..8], size, .little);
    var at: usize = header_bytes;
    switch (rows.ids) {
        .numbers => |numbers| @memcpy(payload[at..][0..sizes[0]], std.mem.sliceAsBytes(numbers[0..count])),
        .strings => |strings| {
            const first = strings.offsets[0];
            for (0..count + 1) |i| std.mem.writeInt(i64, payload[at + 8 * i ..][0..8], strings.offsets[i] - first, .little);
            const heap = 8 * (@as(usize, count) + 1);
            @memcpy(payload[at + heap .. at + sizes[0]], strings.bytes[@intCast(first)..@intCast(strings.offsets[count])]);
        },
    }
    for ([3][]const u8{ rows.vectors, rows.metadata, rows.request }, 0..) |section, i| {
        @memset(payload[at + sizes[i] .. at + padded(sizes[i])], 0);
        at += padded(sizes[i]);
        @memcpy(payload[at..][0..section.len], section);
    }
    @memset(payload[at + sizes[3] .. at + padded(sizes[3])], 0);
    return bytes;
}

pub fn parse(payload: []align(8) const u8, count: u32) error{Damaged}!Rows {
    if (payload.len < header_bytes) return error.Damaged;
    const kind = std.enums.fromInt(Kind, std.mem.readInt(u32, payload[0..4], .little)) orelse return error.Damaged;
    var sections: [4][]align(8) const u8 = undefined;
    var rest: []align(8) const u8 = @alignCast(payload[header_bytes..]);
    for (&sections, 0..) |*section, i| {
        const size = std.mem.readInt(u64, payload[8 + 8 * i ..][0..8], .little);
        if (size > rest.len or padded(@intCast(size)) > rest.len) return error.Damaged;
        section.* = rest[0..@intCast(size)];
        rest = @alignCast(rest[padded(@intCast(size))..]);
    }
    const words = std.mem.bytesAsSlice(i64, sections[0][0 .. sections[0].len / 8 * 8]);
    var ids: Ids = undefined;
    if (kind == .strings) {
        const entries = @as(usize, count) + 1;
        if (words.len < entries) return error.Damaged;
        ids = .{ .strings = .{ .offsets = words[0..entries], .bytes = sections[0][8 * entries ..] } };
        if (!ids.is_whole()) return error.Damaged;
    } else {
        if (sections[0].len != 8 * @as(usize, count)) return error.Damaged;
        ids = .{ .numbers = words };
    }
    return .{
        .count = count,
        .kind = kind,
        .is_upsert = std.mem.readInt(u32, payload[4..8], .little) & flag_upsert != 0,
        .ids = ids,
        .vectors = sections[1],
        .metadata = sections[2],
        .request = sections[3],
    };
}

// ---- ids that go ----
//
// Records hold ids behind their header, in the bytes in which Arrow has them.

const kind_numbers = 0;
const kind_strings = 1;

/// A record with room for its header.
pub fn encode_delete(allocator: std.mem.Allocator, places: []const find.Place) error{OutOfMemory}![]u8 {
    const is_string = places[0][0] == .strings;
    var size: usize = 8 + 8 * places.len;
    if (is_string) {
        size += 8;
        for (places) |place| {
            const ids, const at = place;
            size += ids.text(at).len;
        }
    }
    size = std.mem.alignForward(usize, size, 8);
    const bytes = try allocator.alloc(u8, wal_file.record_bytes(size));
    const payload = bytes[wal_file.record_header_bytes..];
    @memset(payload, 0);
    std.mem.writeInt(u32, payload[0..4], if (is_string) kind_strings else kind_numbers, .little);
    if (!is_string) {
        for (places, 0..) |place, i| {
            const ids, const at = place;
            std.mem.writeInt(i64, payload[8 + 8 * i ..][0..8], ids.numbers[at], .little);
        }
        return bytes;
    }
    const heap = payload[8 + 8 * (places.len + 1) ..];
    var end: usize = 0;
    for (places, 0..) |place, i| {
        std.mem.writeInt(u64, payload[8 + 8 * i ..][0..8], end, .little);
        const ids, const at = place;
        const text = ids.text(at);
        @memcpy(heap[end..][0..text.len], text);
        end += text.len;
    }
    std.mem.writeInt(u64, payload[8 + 8 * places.len ..][0..8], end, .little);
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

// ---- numbers that a call took for rows that come later ----

/// The first, and how many.
pub const reserved_bytes = 16;

/// A record with room for its header.
pub fn encode_reserved(allocator: std.mem.Allocator, given: []const [2]u64) error{OutOfMemory}![]u8 {
    const bytes = try allocator.alloc(u8, wal_file.record_bytes(reserved_bytes * given.len));
    @memset(bytes, 0);
    @memcpy(bytes[wal_file.record_header_bytes..], std.mem.sliceAsBytes(given));
    return bytes;
}

pub fn decode_reserved(payload: []const u8, i: usize) [2]u64 {
    const pair = payload[reserved_bytes * i ..][0..reserved_bytes];
    return .{ std.mem.readInt(u64, pair[0..8], .little), std.mem.readInt(u64, pair[8..16], .little) };
}

test "rows come back as they were written; a payload cut short, or of another number of rows, does not" {
    const allocator = std.testing.allocator;
    const offsets = [_]i64{ 2, 2, 5, 6 };
    const both = [_]Ids{ .{ .numbers = &.{ 5, -7, 9 } }, .{ .strings = .{ .offsets = &offsets, .bytes = "..abcd" } } };
    for (both) |ids| {
        const given: Rows = .{ .kind = if (ids == .numbers) .numbers else .strings, .is_upsert = true, .ids = ids, .vectors = "vectors of rows", .metadata = "columns", .request = "r" };
        const bytes = try encode(allocator, given, 3);
        defer allocator.free(bytes);
        const payload: []align(8) u8 = @alignCast(bytes[wal_file.record_header_bytes..]);
        const back = try parse(payload, 3);
        try std.testing.expectEqual(given.kind, back.kind);
        for (0..3) |row| try std.testing.expect(ids.equal(row, back.ids, row));
        try std.testing.expectEqualStrings(given.vectors, back.vectors);
        try std.testing.expectEqualStrings(given.metadata, back.metadata);
        try std.testing.expectEqualStrings(given.request, back.request);
        try std.testing.expectError(error.Damaged, parse(payload, 40));
        var cut: usize = 0;
        while (cut < payload.len) : (cut += 8) try std.testing.expectError(error.Damaged, parse(payload[0..cut], 3));
    }
}

test "ids come back from a record; a payload cut short does not decode" {
    const allocator = std.testing.allocator;
    const numbers = [_]i64{ 5, -7, std.math.maxInt(i64), std.math.minInt(i64) + 1 };
    const strings: Ids = .{ .strings = .{ .offsets = &.{ 0, 0, 3, 5, 6 }, .bytes = "abcdef" } };
    for ([_]Ids{ .{ .numbers = &numbers }, strings }) |ids| {
        const places = [_]find.Place{ .{ ids, 2 }, .{ ids, 0 }, .{ ids, 3 } };
        const bytes = try encode_delete(allocator, &places);
        defer allocator.free(bytes);
        const payload = bytes[wal_file.record_header_bytes..];
        const back = try decode_ids(allocator, payload, places.len);
        defer free_ids(allocator, back);
        try std.testing.expectEqual(places.len, back.len());
        for (places, 0..) |place, i| switch (ids) {
            .numbers => try std.testing.expectEqual(numbers[place[1]], back.numbers[i]),
            .strings => try std.testing.expectEqualStrings(ids.text(place[1]), back.text(i)),
        };
        try std.testing.expectError(error.Damaged, decode_ids(allocator, payload[0 .. 8 + 8 * 2], places.len));
        try std.testing.expectError(error.Damaged, decode_ids(allocator, payload[0..4], places.len));
        payload[0] = 9;
        try std.testing.expectError(error.Damaged, decode_ids(allocator, payload, places.len));
    }
}
