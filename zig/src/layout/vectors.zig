//! A page of vectors.bin: whole rows of consecutive vertices, as they came.
//!
//!   OFFSET  SIZE              DESCRIPTION
//!   0       8                 checksum: xxh3-64 of bytes 8 .. page size
//!   8       4                 page number
//!   12      4                 salt: from the index's uuid, so that a page of another index is not taken for ours
//!   16      c * row_bytes     rows; then zeros
//!
//! Every page but the last holds as many rows as fit; vertex v is row v mod c of page v / c. So nothing beside the size
//! of a row and the number of rows has to be known to find one.
const std = @import("std");
const base = @import("base");
const assert = std.debug.assert;

pub const header_bytes = 16;

pub const Corrupt = error{ BadChecksum, WrongPage, WrongIndex };

pub const Geometry = struct {
    page_size: u32,
    row_bytes: u32,
    rows_per_page: u32,
    salt: u32,

    /// Of a page at least so much is rows: seven tenths. Else it is doubled, as long as it may be.
    const filled_tenths = 7;

    /// The smallest page that rows fill well, because the remainder is disk space that is never read.
    pub fn of(row_bytes: u32, salt: u32) Geometry {
        assert(row_bytes > 0 and header_bytes + row_bytes <= base.limits.page_size_max);
        var page_size: u32 = base.limits.page_size_min;
        while (page_size < base.limits.page_size_max) : (page_size *= 2) {
            const rows = (page_size - header_bytes) / row_bytes;
            if (rows * row_bytes * 10 >= page_size * filled_tenths) break;
        }
        return .{ .page_size = page_size, .row_bytes = row_bytes, .rows_per_page = (page_size - header_bytes) / row_bytes, .salt = salt };
    }

    pub fn page_of(self: Geometry, vertex: u32) u32 {
        return vertex / self.rows_per_page;
    }

    pub fn offset_of(self: Geometry, page: u32) u64 {
        return @as(u64, page) * self.page_size;
    }

    pub fn page_count(self: Geometry, n: u64) u64 {
        return std.math.divCeil(u64, n, self.rows_per_page) catch unreachable;
    }

    pub fn file_bytes(self: Geometry, n: u64) u64 {
        return self.page_count(n) * self.page_size;
    }

    /// The offset of a vertex's row in its page.
    pub fn place_of(self: Geometry, vertex: u32) u32 {
        return header_bytes + vertex % self.rows_per_page * self.row_bytes;
    }

    pub fn row(self: Geometry, page: []const u8, vertex: u32) []const u8 {
        return page[self.place_of(vertex)..][0..self.row_bytes];
    }

    /// Writes the header over a page whose rows, and zeros behind them, are in place.
    pub fn seal(self: Geometry, page: []u8, page_number: u32) void {
        assert(page.len == self.page_size);
        std.mem.writeInt(u32, page[8..12], page_number, .little);
        std.mem.writeInt(u32, page[12..16], self.salt, .little);
        std.mem.writeInt(u64, page[0..8], base.checksum(page[8..]), .little);
    }

    pub fn check(self: Geometry, page: []const u8, page_number: u32) Corrupt!void {
        assert(page.len == self.page_size);
        if (std.mem.readInt(u64, page[0..8], .little) != base.checksum(page[8..])) return error.BadChecksum;
        if (std.mem.readInt(u32, page[12..16], .little) != self.salt) return error.WrongIndex;
        if (std.mem.readInt(u32, page[8..12], .little) != page_number) return error.WrongPage;
    }
};

test "rows of every size find a page, and none lies over its end" {
    for ([_]u32{ 1, 24, 100, 512, 1024, 2048, 2400, 3072, 4080, 4081, 4096, 6144, 12288, 32768 }) |row_bytes| {
        const geometry = Geometry.of(row_bytes, 1);
        try std.testing.expect(std.math.isPowerOfTwo(geometry.page_size));
        try std.testing.expect(geometry.rows_per_page >= 1);
        const rows = geometry.rows_per_page;
        try std.testing.expect(geometry.place_of(rows - 1) + row_bytes <= geometry.page_size);
        try std.testing.expect(header_bytes + (rows + 1) * row_bytes > geometry.page_size);
        if (geometry.page_size < base.limits.page_size_max) try std.testing.expect(rows * row_bytes * 10 >= geometry.page_size * 7);
        try std.testing.expectEqual(0, geometry.page_of(rows - 1));
        try std.testing.expectEqual(1, geometry.page_of(rows));
        try std.testing.expectEqual(geometry.place_of(0), geometry.place_of(rows));
        try std.testing.expectEqual(2 * geometry.page_size, geometry.file_bytes(rows + 1));
    }
    try std.testing.expectEqual(4096, Geometry.of(512, 1).page_size);
    try std.testing.expectEqual(16384, Geometry.of(4096, 1).page_size);
}

test "a page sealed checks, and no flipped bit, other number or other index does" {
    const geometry = Geometry.of(100, 77);
    var page: [4096]u8 = @splat(0);
    for (page[header_bytes..][0 .. 40 * 100], 0..) |*byte, i| byte.* = @truncate(i * 31);
    geometry.seal(&page, 5);
    try geometry.check(&page, 5);
    try std.testing.expectError(error.WrongPage, geometry.check(&page, 6));
    var other = geometry;
    other.salt = 78;
    try std.testing.expectError(error.WrongIndex, other.check(&page, 5));
    for (0..page.len * 8) |bit| {
        page[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        defer page[bit / 8] ^= @as(u8, 1) << @intCast(bit % 8);
        try std.testing.expectError(error.BadChecksum, geometry.check(&page, 5));
    }
}
