//! Metadata of rows as the log has it: a record batch of Arrow (Message.fbs, format version 5) of plain columns without nulls.
//!
//! To threads that write a row each, Arrow costs more than the write: it gives up the interpreter several times a call. So the head
//! of such a batch is laid out here.
const std = @import("std");

pub const Columns = struct {
    /// Written first, where columns were added since the index was made; 0: none were.
    mark: u32 = 0,
    rows: u32,
    count: u32,
    /// Of the buffers of each column (validity, offsets, values), in its order; none: `buffers` is a batch that Arrow wrote.
    buffer_sizes: []const u64,
    /// The buffers, one after the other.
    buffers: []const u8,

    pub fn is_whole(self: *const Columns) bool {
        if (self.buffer_sizes.len == 0) return true;
        var total: u64 = 0;
        for (self.buffer_sizes) |size| total = std.math.add(u64, total, size) catch return false;
        return total == self.buffers.len;
    }
};

const mark_bytes = 8;
const version_5 = 4;
const kind_record_batch = 3;
/// Precedes a message, with the size of its head.
const continuation = std.math.maxInt(u32);
// Places in the head: a table is behind its virtual table, an integer of eight bytes at a multiple of them.
const message_fields = 4;
const message = 16;
const batch_fields = 40;
const batch = 56;
const nodes = 76;

/// Mark and batch; null where they are `buffers` already.
pub fn encode(allocator: std.mem.Allocator, columns: *const Columns) error{OutOfMemory}!?[]u8 {
    const start: usize = if (columns.mark == 0) 0 else mark_bytes;
    if (columns.buffer_sizes.len > 0) return try laid_out(allocator, columns, start);
    if (start == 0) return null;
    const bytes = try allocator.alloc(u8, start + columns.buffers.len);
    put_mark(bytes, columns.mark);
    @memcpy(bytes[start..], columns.buffers);
    return bytes;
}

fn laid_out(allocator: std.mem.Allocator, columns: *const Columns, start: usize) error{OutOfMemory}![]u8 {
    std.debug.assert(columns.is_whole());
    const buffers = nodes + 4 + 16 * @as(usize, columns.count) + 4;
    const head_size = buffers + 4 + 16 * columns.buffer_sizes.len;
    var body_size: usize = 0;
    for (columns.buffer_sizes) |size| body_size += padded(@intCast(size));
    const bytes = try allocator.alloc(u8, start + 8 + head_size + body_size);
    @memset(bytes, 0);
    if (start > 0) put_mark(bytes, columns.mark);
    put(u32, bytes, start, continuation);
    put(u32, bytes, start + 4, @intCast(head_size));

    const head = bytes[start + 8 ..][0..head_size];
    put(u32, head, 0, message);
    // Sizes of the virtual table and of the table, then the place of each field in the table.
    for ([_]u16{ 12, 24, 16, 18, 4, 8 }, 0..) |place, i| put(u16, head, message_fields + 2 * i, place);
    put(i32, head, message, message - message_fields);
    put(u32, head, message + 4, batch - (message + 4));
    put(u64, head, message + 8, body_size);
    put(u16, head, message + 16, version_5);
    head[message + 18] = kind_record_batch;
    for ([_]u16{ 10, 20, 8, 4, 16 }, 0..) |place, i| put(u16, head, batch_fields + 2 * i, place);
    put(i32, head, batch, batch - batch_fields);
    put(u32, head, batch + 4, nodes - (batch + 4));
    put(u64, head, batch + 8, columns.rows);
    put(u32, head, batch + 16, @intCast(buffers - (batch + 16)));
    put(u32, head, nodes, columns.count);
    for (0..columns.count) |column| put(u64, head, nodes + 4 + 16 * column, columns.rows); // and 0 nulls
    put(u32, head, buffers, @intCast(columns.buffer_sizes.len));

    const body = bytes[start + 8 + head_size ..];
    var from: usize = 0;
    var to: usize = 0;
    for (columns.buffer_sizes, 0..) |size, i| {
        const len: usize = @intCast(size);
        put(u64, head, buffers + 4 + 16 * i, to);
        put(u64, head, buffers + 12 + 16 * i, len);
        @memcpy(body[to..][0..len], columns.buffers[from..][0..len]);
        from += len;
        to += padded(len);
    }
    return bytes;
}

fn put_mark(bytes: []u8, mark: u32) void {
    put(u64, bytes, 0, mark);
}

fn put(comptime T: type, bytes: []u8, at: usize, value: T) void {
    std.mem.writeInt(T, bytes[at..][0..@sizeOf(T)], value, .little);
}

fn padded(size: usize) usize {
    return std.mem.alignForward(usize, size, 8);
}

test "buffers begin at multiples of eight bytes behind a head of as many" {
    const allocator = std.testing.allocator;
    const sizes = [_]u64{ 0, 4, 0, 12, 5 };
    const columns: Columns = .{ .rows = 2, .count = 2, .buffer_sizes = &sizes, .buffers = "abcd" ++ "0123456789ab" ++ "texts" };
    try std.testing.expect(columns.is_whole());
    const bytes = (try encode(allocator, &columns)).?;
    defer allocator.free(bytes);
    const head_size = std.mem.readInt(u32, bytes[4..8], .little);
    try std.testing.expectEqual(0, head_size % 8);
    const body = bytes[8 + head_size ..];
    try std.testing.expectEqualStrings("abcd\x00\x00\x00\x000123456789ab\x00\x00\x00\x00texts\x00\x00\x00", body);
    try std.testing.expectEqual(body.len, std.mem.readInt(u64, bytes[8 + message + 8 ..][0..8], .little));
    var with_mark = columns;
    with_mark.mark = 7;
    const second = (try encode(allocator, &with_mark)).?;
    defer allocator.free(second);
    try std.testing.expectEqualStrings("\x07\x00\x00\x00\x00\x00\x00\x00", second[0..8]);
    try std.testing.expectEqualStrings(bytes, second[8..]);
    const third = (try encode(allocator, &.{ .mark = 7, .rows = 2, .count = 2, .buffer_sizes = &.{}, .buffers = bytes })).?;
    defer allocator.free(third);
    try std.testing.expectEqualStrings(second, third);
    with_mark.buffers = "short";
    try std.testing.expect(!with_mark.is_whole());
}
