//! The log, as bytes: a header, then records, each a change that is there wholly or not at all. Pure: opens no file.
//!
//! A record says up to which byte the log was synced when it was written, its promise. So damage and a torn end are told
//! apart: a bad record below a promise was on the device once and is damage; one above all promises may never have
//! arrived. Devices write out of order, so what follows a torn record proves nothing, and the log ends before it.
const std = @import("std");
const base = @import("base");

pub const header_bytes = 64;
pub const record_header_bytes = 64;
const wal_magic = "VELOLOG\x01".*;
const record_magic = "VELOREC\x01".*;
const version = 1;

pub const Header = struct {
    uuid: [16]u8,
    /// In every record: one of another log, or of a user's data, is never taken for one of this.
    salt: u64,
    /// Of the first record.
    first_sequence: u64,

    pub fn encode(self: *const Header) [header_bytes]u8 {
        var bytes: [header_bytes]u8 = @splat(0);
        bytes[8..16].* = wal_magic;
        std.mem.writeInt(u32, bytes[16..20], version, .little);
        bytes[24..40].* = self.uuid;
        std.mem.writeInt(u64, bytes[40..48], self.salt, .little);
        std.mem.writeInt(u64, bytes[48..56], self.first_sequence, .little);
        std.mem.writeInt(u64, bytes[0..8], base.checksum(bytes[8..]), .little);
        return bytes;
    }

    pub fn parse(bytes: []const u8) error{ BadHeader, NewerVersion }!Header {
        if (bytes.len < header_bytes or !std.mem.eql(u8, bytes[8..16], &wal_magic)) return error.BadHeader;
        if (std.mem.readInt(u64, bytes[0..8], .little) != base.checksum(bytes[8..header_bytes])) return error.BadHeader;
        if (std.mem.readInt(u32, bytes[16..20], .little) != version) return error.NewerVersion;
        return .{
            .uuid = bytes[24..40].*,
            .salt = std.mem.readInt(u64, bytes[40..48], .little),
            .first_sequence = std.mem.readInt(u64, bytes[48..56], .little),
        };
    }
};

pub const Kind = enum(u32) {
    /// Changes nothing; it says what is synced. The last record of a log whose writer closed it, or replaced it. It may reserve
    /// numbers of rows.
    promise = 0,
    /// Ids of rows that are gone.
    delete = 1,
    /// Rows that are new, or take the place of those with the same ids (rows.zig).
    rows = 2,
    /// Such a record of an earlier log, whose rows are in no segment yet; the new manifest has its deletions.
    carried = 3,
    /// Which of the rows carried over are gone: their numbers, four bytes each.
    buried = 4,
    _,

    /// Whether a record is a change of its own, with a sequence.
    pub fn is_change(self: Kind) bool {
        return switch (self) {
            .promise, .carried, .buried => false,
            .delete, .rows, _ => true,
        };
    }
};

pub const Record = struct {
    kind: Kind,
    rows: u32,
    sequence: u64,
    /// Whole multiples of 8 bytes.
    payload: []const u8,
};

/// The position of a log: behind its last good record.
pub const Position = struct {
    salt: u64,
    offset: u64 = header_bytes,
    /// Of the last record that changed something.
    sequence: u64,
    /// Of the last record: a log cut and grown again shows.
    sum: u64 = 0,
    /// Up to this byte the log was synced, as its records say.
    promise: u64 = 0,

    pub fn begin(header: *const Header) Position {
        return .{ .salt = header.salt, .sequence = header.first_sequence - 1 };
    }
};

pub fn record_bytes(payload_bytes: usize) usize {
    return record_header_bytes + payload_bytes;
}

/// Completes a record whose payload stands in `bytes` behind room for the header, and moves the position behind it.
pub fn seal(bytes: []u8, kind: Kind, rows: u32, synced: u64, position: *Position) void {
    std.debug.assert(bytes.len >= record_header_bytes and bytes.len % 8 == 0);
    const sequence = position.sequence + @intFromBool(kind.is_change());
    std.mem.writeInt(u64, bytes[8..16], position.salt, .little);
    std.mem.writeInt(u64, bytes[16..24], bytes.len - record_header_bytes, .little);
    std.mem.writeInt(u64, bytes[24..32], sequence, .little);
    std.mem.writeInt(u64, bytes[32..40], position.sum, .little);
    std.mem.writeInt(u64, bytes[40..48], synced, .little);
    std.mem.writeInt(u32, bytes[48..52], @intFromEnum(kind), .little);
    std.mem.writeInt(u32, bytes[52..56], rows, .little);
    bytes[56..64].* = record_magic;
    const sum = base.checksum(bytes[8..]);
    std.mem.writeInt(u64, bytes[0..8], sum, .little);
    position.sum = sum;
    position.sequence = sequence;
    position.offset += bytes.len;
    position.promise = @max(position.promise, synced);
}

/// The end of the records: the end of the log, or before bytes that are no record.
pub const End = enum { whole, torn };

pub const Scanner = struct {
    /// From byte `first` of the log on.
    bytes: []const u8,
    first: u64,
    position: Position,

    /// Null at the end; `end` says which.
    pub fn next(self: *Scanner) ?Record {
        const at: usize = @intCast(self.position.offset - self.first);
        const size = self.whole_record(at) orelse return null;
        const bytes = self.bytes[at..][0..size];
        const kind: Kind = @enumFromInt(std.mem.readInt(u32, bytes[48..52], .little));
        const sequence = std.mem.readInt(u64, bytes[24..32], .little);
        if (sequence != self.position.sequence + @intFromBool(kind.is_change())) return null;
        if (std.mem.readInt(u64, bytes[32..40], .little) != self.position.sum) return null;
        const synced = std.mem.readInt(u64, bytes[40..48], .little);
        if (synced > self.position.offset) return null;
        self.position.sequence = sequence;
        self.position.sum = std.mem.readInt(u64, bytes[0..8], .little);
        self.position.promise = @max(self.position.promise, synced);
        self.position.offset += size;
        return .{
            .kind = kind,
            .rows = std.mem.readInt(u32, bytes[52..56], .little),
            .sequence = sequence,
            .payload = bytes[record_header_bytes..],
        };
    }

    /// The size of the record at `at`, if one stands there and is as it was written.
    fn whole_record(self: *const Scanner, at: usize) ?usize {
        if (self.bytes.len - at < record_header_bytes) return null;
        const bytes = self.bytes[at..];
        if (!std.mem.eql(u8, bytes[56..64], &record_magic)) return null;
        if (std.mem.readInt(u64, bytes[8..16], .little) != self.position.salt) return null;
        const payload = std.mem.readInt(u64, bytes[16..24], .little);
        if (payload % 8 != 0 or payload > bytes.len - record_header_bytes) return null;
        const size = record_header_bytes + @as(usize, @intCast(payload));
        if (std.mem.readInt(u64, bytes[0..8], .little) != base.checksum(bytes[8..size])) return null;
        return size;
    }

    /// Once `next` gave null: what stands at its position. error.Damaged: a promise, of a record before it or behind it,
    /// says that a whole record stood there.
    pub fn end(self: *const Scanner) error{Damaged}!End {
        const bad = self.position.offset;
        if (self.position.promise > bad) return error.Damaged;
        const length = self.first + self.bytes.len;
        if (bad == length) return .whole;
        var at: usize = @intCast(bad - self.first);
        while (at + record_header_bytes <= self.bytes.len) : (at += 8) {
            const size = self.whole_record(at) orelse continue;
            const synced = std.mem.readInt(u64, self.bytes[at..][40..48], .little);
            if (synced > bad and synced <= self.first + at) return error.Damaged;
            at += size - 8;
        }
        return .torn;
    }
};

fn append(list: *std.ArrayList(u8), kind: Kind, payload: []const u8, synced: u64, position: *Position) !void {
    const allocator = std.testing.allocator;
    const bytes = try allocator.alloc(u8, record_bytes(payload.len));
    defer allocator.free(bytes);
    @memcpy(bytes[record_header_bytes..], payload);
    seal(bytes, kind, @intCast(payload.len / 8), synced, position);
    try list.appendSlice(allocator, bytes);
}

fn records_in(bytes: []const u8) !struct { count: u32, end: error{Damaged}!End } {
    const header = try Header.parse(bytes);
    var scanner: Scanner = .{ .bytes = bytes, .first = 0, .position = .begin(&header) };
    var count: u32 = 0;
    while (scanner.next()) |_| count += 1;
    return .{ .count = count, .end = scanner.end() };
}

test "every cut of a log leaves its first records, and every flipped bit is damage or a torn end, never another record" {
    const allocator = std.testing.allocator;
    var list: std.ArrayList(u8) = .empty;
    defer list.deinit(allocator);
    const header: Header = .{ .uuid = @splat(3), .salt = 77, .first_sequence = 5 };
    try list.appendSlice(allocator, &header.encode());
    var position: Position = .begin(&header);
    var ends: [6]u64 = undefined;
    // Synced behind the second record, as the fourth says.
    for (&ends, 0..) |*stop, i| {
        const payload: [24]u8 = @splat(@intCast(i));
        try append(&list, .delete, payload[0 .. 8 * (i % 4)], if (i < 3) 0 else ends[1], &position);
        stop.* = position.offset;
    }
    try std.testing.expectEqual(10, position.sequence);
    for (header_bytes..list.items.len + 1) |cut| {
        const found = try records_in(list.items[0..cut]);
        var whole: u32 = 0;
        for (ends) |stop| whole += @intFromBool(stop <= cut);
        try std.testing.expectEqual(whole, found.count);
        const at_end = cut == header_bytes or std.mem.indexOfScalar(u64, &ends, cut) != null;
        try std.testing.expectEqual(if (at_end) End.whole else .torn, found.end);
    }
    for (0..list.items.len * 8) |bit| {
        const byte = bit / 8;
        list.items[byte] ^= @as(u8, 1) << @intCast(bit % 8);
        defer list.items[byte] ^= @as(u8, 1) << @intCast(bit % 8);
        if (byte < header_bytes) {
            try std.testing.expectError(error.BadHeader, Header.parse(list.items));
            continue;
        }
        const found = try records_in(list.items);
        var before: u32 = 0;
        for (ends) |stop| before += @intFromBool(stop <= byte);
        try std.testing.expectEqual(before, found.count);
        if (byte < ends[1]) try std.testing.expectError(error.Damaged, found.end) else try std.testing.expectEqual(End.torn, found.end);
    }
}

test "a promise keeps the sequence, and a log cut below it is damaged" {
    const allocator = std.testing.allocator;
    var list: std.ArrayList(u8) = .empty;
    defer list.deinit(allocator);
    const header: Header = .{ .uuid = @splat(3), .salt = 77, .first_sequence = 1 };
    try list.appendSlice(allocator, &header.encode());
    var position: Position = .begin(&header);
    try append(&list, .delete, "12345678", 0, &position);
    const first_end = position.offset;
    try append(&list, .promise, "", first_end, &position);
    try std.testing.expectEqual(1, position.sequence);
    try append(&list, .delete, "abcdefgh", first_end, &position);
    try std.testing.expectEqual(3, (try records_in(list.items)).count);
    list.items[header_bytes + 20] ^= 1;
    try std.testing.expectError(error.Damaged, (try records_in(list.items)).end);
}

test "a record follows the one it was written behind, and no other of the same place, length and sequence" {
    const allocator = std.testing.allocator;
    const header: Header = .{ .uuid = @splat(3), .salt = 77, .first_sequence = 1 };
    var written: std.ArrayList(u8) = .empty;
    defer written.deinit(allocator);
    try written.appendSlice(allocator, &header.encode());
    var position: Position = .begin(&header);
    try append(&written, .delete, "12345678", 0, &position);
    try append(&written, .delete, "abcdefgh", 0, &position);
    try std.testing.expectEqual(2, (try records_in(written.items)).count);
    // The first was not what the device kept: a call that failed had written another one there.
    var other: std.ArrayList(u8) = .empty;
    defer other.deinit(allocator);
    position = .begin(&header);
    try append(&other, .delete, "87654321", 0, &position);
    @memcpy(written.items[header_bytes..][0..other.items.len], other.items);
    const found = try records_in(written.items);
    try std.testing.expectEqual(1, found.count);
    try std.testing.expectEqual(End.torn, found.end);
}
