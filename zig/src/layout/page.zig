//! A page of pages.bin: the records of consecutive vertices, laid out by column so that all their codes are scored in
//! one pass and an adjacency list is decoded only when it is followed.
//!
//!   OFFSET  SIZE              DESCRIPTION
//!   0       8                 checksum: xxh3-64 of bytes 8 .. page size
//!   8       4                 page index, 0-based within the data pages
//!   12      4                 first vertex
//!   16      4                 salt: from the index's uuid, so that a page of another index is not taken for ours
//!   20      2                 record count c
//!   22      2                 adjacency start a: first byte of the adjacency heap, from the start of the page
//!   24      c * 4             factors of the upper code; these three only in pages that hold whole codes
//!   …       c * 1             center
//!   …       c * upper_bytes   upper codes
//!   …       c * lower_bytes   lower codes
//!   …       c * 4             offset A of the full code (f32)
//!   …       c * 2             factor F of the full code, as a share of that of the upper code (u16)
//!   …       c * 1             color: records of one color lie within tau of each other
//!   …       c * 2             adjacency end: one past the list's last byte, from a; only in pages with lists
//!   a       …                 adjacency lists (page_lists.zig); only in pages with lists
//!   …       …                 ids of the table of neighbors, a list of vertex `first` (page_lists.zig); this and the next
//!                             only in pages with a table
//!   …       t * code_bytes    product codes of these neighbors, by ascending id; then zeros
//!
//! The table of a page names neighbors of its records outside the page, with a product code each: a search knows from it
//! which page to read next, without anything in memory for each vector.
//!
//! All little-endian. Vertex `first + i` is record `i`, so no slot stores an id.
const std = @import("std");
const base = @import("base");
const page_lists = @import("page_lists.zig");
const assert = std.debug.assert;

pub const header_bytes = 24;
const factor_bytes = 6;
/// Of a record in a page that holds whole codes, beside its upper code.
const upper_factor_bytes = 5;
/// No float of 16 bits that is not negative is larger (docs/FORMAT.md, "Codes and their packing").
pub const upper_factor_largest = 0xfeff;
pub const records_max = 512;
/// Neighbors in a page's table.
pub const table_max = page_lists.neighbors_max;
/// Bytes of a table without neighbors, at most.
pub const table_bytes_min = 4;
/// Bytes of a product code.
pub const code_bytes_max = 64;

pub const Corrupt = error{
    BadChecksum,
    WrongPage,
    WrongIndex,
    BadRecordCount,
    BadAdjacency,
    BadFactors,
    BadTable,
};

pub fn describe(corrupt: Corrupt) []const u8 {
    return switch (corrupt) {
        error.BadChecksum => "its checksum does not match its content",
        error.WrongPage => "it carries another page's number",
        error.WrongIndex => "it belongs to another index",
        error.BadRecordCount => "its record count is impossible",
        error.BadFactors => "a factor of a code is no number",
        error.BadAdjacency => "its adjacency lists overlap or leave the page",
        error.BadTable => "its table of neighbors is damaged",
    };
}

pub const Geometry = struct {
    page_size: u32,
    lower_bytes: u32,
    salt: u32,
    /// Pages hold the neighbor lists of their records.
    lists: bool,
    /// Of a record's upper code, where pages hold whole codes; else 0.
    upper_bytes: u32 = 0,
    /// Of a product code, where pages end with a table of neighbors; else 0.
    code_bytes: u32 = 0,

    /// Bytes a record takes beside its adjacency list.
    pub fn record_bytes(self: Geometry) u32 {
        return self.whole_bytes() + self.lower_bytes + factor_bytes + 1 + @as(u32, if (self.lists) 2 else 0);
    }

    /// Of them for what codes.bin holds, too.
    fn whole_bytes(self: Geometry) u32 {
        return if (self.upper_bytes > 0) self.upper_bytes + upper_factor_bytes else 0;
    }

    pub fn bytes_needed(self: Geometry, record_count: u32, adjacency_bytes: u32) u32 {
        return header_bytes + record_count * self.record_bytes() + adjacency_bytes;
    }
};

/// A page whose header, checksum and regions were checked. Lists are checked when they are decoded.
pub const View = struct {
    bytes: [*]const u8,
    page_size: u32,
    first_vertex: u32,
    record_count: u32,
    /// Data of codes.bin for these records; null in pages without whole codes.
    uppers: ?Uppers,
    lower: [*]const u8,
    offsets: []align(1) const f32,
    ratios: []align(1) const u16,
    colors: []const u8,
    /// Empty in pages without lists.
    ends: []align(1) const u16,
    adjacency_start: u32,
    /// 0 in pages without a table.
    code_bytes: u32,

    pub const Table = struct {
        /// Ascending, none of them on this page.
        ids: []const u32,
        /// `code_bytes` each, in the order of `ids`.
        codes: [*]const u8,
    };
    pub const Uppers = struct { factors: []const u32, center_ids: []const u8, codes: [*]const u8 };
    pub const Expected = struct { page_index: u32, first_vertex: u32, record_count: u32 };

    pub fn parse(bytes: []const u8, geometry: Geometry, expected: Expected) Corrupt!View {
        assert(bytes.len == geometry.page_size);
        if (read_u64(bytes, 0) != base.checksum(bytes[8..])) return error.BadChecksum;
        if (read_u32(bytes, 16) != geometry.salt) return error.WrongIndex;
        if (read_u32(bytes, 8) != expected.page_index) return error.WrongPage;
        const count: u32 = read_u16(bytes, 20);
        if (count > records_max or count != expected.record_count or read_u32(bytes, 12) != expected.first_vertex) return error.BadRecordCount;
        const start = geometry.bytes_needed(count, 0);
        if (start > bytes.len or read_u16(bytes, 22) != start) return error.BadRecordCount;
        const view: View = .of(bytes, geometry, expected);
        if (view.uppers) |uppers| for (uppers.factors) |pair| if (@max(pair & 0xffff, pair >> 16) > upper_factor_largest) return error.BadFactors;
        for (view.offsets) |offset| if (!std.math.isFinite(offset)) return error.BadFactors;
        if (view.ends.len > 0 and start + view.ends[count - 1] > bytes.len) return error.BadAdjacency;
        return view;
    }

    /// A page that `parse` has found whole.
    pub fn of(bytes: []const u8, geometry: Geometry, expected: Expected) View {
        const count = expected.record_count;
        var at: u32 = header_bytes;
        var uppers: ?Uppers = null;
        if (geometry.upper_bytes > 0) {
            const factors: []const u32 = @alignCast(std.mem.bytesAsSlice(u32, bytes[at..][0 .. 4 * count]));
            at += 4 * count;
            uppers = .{ .factors = factors, .center_ids = bytes[at..][0..count], .codes = bytes.ptr + at + count };
            at += count * (1 + geometry.upper_bytes);
        }
        const lower = bytes.ptr + at;
        at += count * geometry.lower_bytes;
        const offsets: []align(1) const f32 = @ptrCast(bytes[at..][0 .. 4 * count]);
        at += 4 * count;
        const ratios: []align(1) const u16 = @ptrCast(bytes[at..][0 .. 2 * count]);
        at += 2 * count;
        const colors = bytes[at..][0..count];
        at += count;
        const ends: []align(1) const u16 = @ptrCast(bytes[at..][0..if (geometry.lists) 2 * count else 0]);
        return .{
            .bytes = bytes.ptr,
            .page_size = geometry.page_size,
            .first_vertex = expected.first_vertex,
            .record_count = count,
            .uppers = uppers,
            .lower = lower,
            .offsets = offsets,
            .ratios = ratios,
            .colors = colors,
            .ends = ends,
            .adjacency_start = geometry.bytes_needed(count, 0),
            .code_bytes = geometry.code_bytes,
        };
    }

    pub fn has(self: *const View, vertex: u32) bool {
        return vertex >= self.first_vertex and vertex - self.first_vertex < self.record_count;
    }

    /// The encoded list of record `index`. Page buffers carry `adjacency.over_read_bytes` of padding behind them.
    pub fn list(self: *const View, index: u32) error{BadAdjacency}!struct { bytes: [*]const u8, length: u32 } {
        assert(index < self.record_count);
        if (self.ends.len == 0) return .{ .bytes = self.bytes, .length = 0 };
        const begin: u32 = if (index == 0) 0 else self.ends[index - 1];
        const end: u32 = self.ends[index];
        if (begin > end or self.adjacency_start + end > self.page_size) return error.BadAdjacency;
        return .{ .bytes = self.bytes + self.adjacency_start + begin, .length = end - begin };
    }

    /// The table of neighbors, whose ids are decoded into `out`; empty in pages without one. Ids are below `n`.
    pub fn table(self: *const View, lists: *const page_lists.Codec, n: u32, out: *[table_max]u32) error{BadTable}!Table {
        if (self.code_bytes == 0) return .{ .ids = &.{}, .codes = self.bytes };
        const begin = self.adjacency_start + if (self.ends.len > 0) self.ends[self.ends.len - 1] else 0;
        if (begin > self.page_size) return error.BadTable;
        const room = self.page_size - begin;
        var length: u32 = undefined;
        const ids = lists.decode_within(self.first_vertex, self.bytes + begin, room, n, out, &length) catch return error.BadTable;
        if (ids.len * self.code_bytes > room - length) return error.BadTable;
        for (ids) |id| if (self.has(id)) return error.BadTable;
        return .{ .ids = ids, .codes = self.bytes + begin + length };
    }
};

/// Fills one page; the caller has made sure by `bytes_needed` that everything fits.
pub const Composer = struct {
    bytes: []u8,
    geometry: Geometry,
    record_count: u32,
    at_adjacency: u32,
    added: u32 = 0,

    pub fn init(bytes: []u8, geometry: Geometry, page_index: u32, first_vertex: u32, record_count: u32) Composer {
        assert(bytes.len == geometry.page_size);
        assert(record_count <= records_max);
        @memset(bytes, 0);
        const start = geometry.bytes_needed(record_count, 0);
        std.mem.writeInt(u32, bytes[8..12], page_index, .little);
        std.mem.writeInt(u32, bytes[12..16], first_vertex, .little);
        std.mem.writeInt(u32, bytes[16..20], geometry.salt, .little);
        std.mem.writeInt(u16, bytes[20..22], @intCast(record_count), .little);
        std.mem.writeInt(u16, bytes[22..24], @intCast(start), .little);
        return .{ .bytes = bytes, .geometry = geometry, .record_count = record_count, .at_adjacency = start };
    }

    /// Data of codes.bin for a record.
    const Upper = struct { code: []const u8, factors: u32, center: u8 };

    /// `upper` enters pages that hold whole codes.
    pub fn add(self: *Composer, upper: Upper, lower: []const u8, offset: f32, ratio: u16, color: u8, list: []const u8) void {
        const i = self.added;
        assert(i < self.record_count);
        assert(lower.len == self.geometry.lower_bytes);
        const c = self.record_count;
        if (self.geometry.upper_bytes > 0) {
            assert(upper.code.len == self.geometry.upper_bytes);
            std.mem.writeInt(u32, self.bytes[header_bytes + 4 * i ..][0..4], upper.factors, .little);
            self.bytes[header_bytes + 4 * c + i] = upper.center;
            @memcpy(self.bytes[header_bytes + upper_factor_bytes * c + i * upper.code.len ..][0..upper.code.len], upper.code);
        }
        const codes_begin = header_bytes + c * self.geometry.whole_bytes();
        const codes_end = codes_begin + c * self.geometry.lower_bytes;
        @memcpy(self.bytes[codes_begin + i * lower.len ..][0..lower.len], lower);
        std.mem.writeInt(u32, self.bytes[codes_end + 4 * i ..][0..4], @bitCast(offset), .little);
        std.mem.writeInt(u16, self.bytes[codes_end + 4 * c + 2 * i ..][0..2], ratio, .little);
        self.bytes[codes_end + factor_bytes * c + i] = color;
        self.added += 1;
        if (!self.geometry.lists) return assert(list.len == 0);
        @memcpy(self.bytes[self.at_adjacency..][0..list.len], list);
        self.at_adjacency += @intCast(list.len);
        const end: u16 = @intCast(self.at_adjacency - self.geometry.bytes_needed(c, 0));
        std.mem.writeInt(u16, self.bytes[codes_end + (factor_bytes + 1) * c + 2 * i ..][0..2], end, .little);
    }

    /// Bytes for the table, once all records were added.
    pub fn room(self: *const Composer) u32 {
        assert(self.added == self.record_count);
        return self.geometry.page_size - self.at_adjacency;
    }

    /// `list` is the encoded list of the ids, which fits with `codes` into `room`.
    pub fn add_table(self: *Composer, list: []const u8, codes: []const u8) void {
        assert(list.len + codes.len <= self.room());
        @memcpy(self.bytes[self.at_adjacency..][0..list.len], list);
        @memcpy(self.bytes[self.at_adjacency + list.len ..][0..codes.len], codes);
        self.at_adjacency += @intCast(list.len + codes.len);
    }

    pub fn seal(self: *Composer) void {
        assert(self.added == self.record_count);
        std.mem.writeInt(u64, self.bytes[0..8], base.checksum(self.bytes[8..]), .little);
    }
};

fn read_u16(bytes: []const u8, at: usize) u16 {
    return std.mem.readInt(u16, bytes[at..][0..2], .little);
}

fn read_u32(bytes: []const u8, at: usize) u32 {
    return std.mem.readInt(u32, bytes[at..][0..4], .little);
}

fn read_u64(bytes: []const u8, at: usize) u64 {
    return std.mem.readInt(u64, bytes[at..][0..8], .little);
}

const no_upper: Composer.Upper = .{ .code = &.{}, .factors = 0, .center = 0 };

test "what a composer wrote a view reads back, and one flipped bit anywhere is noticed" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    for (0..50) |_| {
        const geometry: Geometry = .{ .page_size = 4096, .lower_bytes = random.uintAtMost(u32, 96), .salt = random.int(u32), .lists = random.boolean(), .upper_bytes = 32 * random.uintAtMost(u32, 1) };
        const list_bytes_max: u32 = if (geometry.lists) 64 else 0;
        const records_fitting = (geometry.page_size - header_bytes) / (geometry.record_bytes() + list_bytes_max);
        const count = random.uintLessThan(u32, @min(24, records_fitting)) + 1;
        var bytes: [4096]u8 align(4) = undefined;
        var composer = Composer.init(&bytes, geometry, 7, 1000, count);
        var upper: [24][32]u8 = undefined;
        var lower: [24][96]u8 = undefined;
        var lists: [24][64]u8 = undefined;
        var lengths: [24]u32 = undefined;
        for (0..count) |i| {
            random.bytes(&upper[i]);
            random.bytes(&lower[i]);
            random.bytes(&lists[i]);
            lengths[i] = random.uintAtMost(u32, list_bytes_max);
            composer.add(.{ .code = upper[i][0..geometry.upper_bytes], .factors = @intCast(i * 5), .center = @intCast(i) }, lower[i][0..geometry.lower_bytes], 0.5 * @as(f32, @floatFromInt(i)), @intCast(i * 3), @intCast(i), lists[i][0..lengths[i]]);
        }
        composer.seal();
        const expected: View.Expected = .{ .page_index = 7, .first_vertex = 1000, .record_count = count };
        const view = try View.parse(&bytes, geometry, expected);
        for (0..count) |i| {
            try std.testing.expectEqual(geometry.upper_bytes > 0, view.uppers != null);
            if (view.uppers) |uppers| {
                try std.testing.expectEqualSlices(u8, &upper[i], uppers.codes[i * 32 ..][0..32]);
                try std.testing.expectEqual(i * 5, uppers.factors[i]);
                try std.testing.expectEqual(i, uppers.center_ids[i]);
            }
            try std.testing.expectEqualSlices(u8, lower[i][0..geometry.lower_bytes], view.lower[i * geometry.lower_bytes ..][0..geometry.lower_bytes]);
            try std.testing.expectEqual(0.5 * @as(f32, @floatFromInt(i)), view.offsets[i]);
            try std.testing.expectEqual(i * 3, view.ratios[i]);
            try std.testing.expectEqual(i, view.colors[i]);
            const list = try view.list(@intCast(i));
            try std.testing.expectEqualSlices(u8, lists[i][0..lengths[i]], list.bytes[0..list.length]);
        }
        bytes[random.uintLessThan(usize, 4096)] ^= @as(u8, 1) << random.int(u3);
        try std.testing.expectError(error.BadChecksum, View.parse(&bytes, geometry, expected));
    }
}

test "a page of another place or index is named as such" {
    const geometry: Geometry = .{ .page_size = 4096, .lower_bytes = 8, .salt = 1, .lists = true };
    var bytes: [4096]u8 align(4) = undefined;
    var composer = Composer.init(&bytes, geometry, 3, 30, 1);
    composer.add(no_upper, &@as([8]u8, @splat(1)), 0, 0, 0, &.{0});
    composer.seal();
    const right: View.Expected = .{ .page_index = 3, .first_vertex = 30, .record_count = 1 };
    _ = try View.parse(&bytes, geometry, right);
    var wrong = right;
    wrong.page_index = 4;
    try std.testing.expectError(error.WrongPage, View.parse(&bytes, geometry, wrong));
    wrong = right;
    wrong.record_count = 2;
    try std.testing.expectError(error.BadRecordCount, View.parse(&bytes, geometry, wrong));
    var other = geometry;
    other.salt = 2;
    try std.testing.expectError(error.WrongIndex, View.parse(&bytes, other, right));
}

test "a page of more than the most records is refused, whatever the directory says" {
    const geometry: Geometry = .{ .page_size = 4096, .lower_bytes = 0, .salt = 1, .lists = false };
    for ([_]u32{ records_max, records_max + 1, 581 }) |count| {
        var bytes: [4096]u8 align(4) = @splat(0);
        std.mem.writeInt(u32, bytes[16..20], geometry.salt, .little);
        std.mem.writeInt(u16, bytes[20..22], @intCast(count), .little);
        std.mem.writeInt(u16, bytes[22..24], @intCast(geometry.bytes_needed(count, 0)), .little);
        std.mem.writeInt(u64, bytes[0..8], base.checksum(bytes[8..]), .little);
        const parsed = View.parse(&bytes, geometry, .{ .page_index = 0, .first_vertex = 0, .record_count = count });
        if (count == records_max)
            try std.testing.expectEqual(count, (try parsed).record_count)
        else
            try std.testing.expectError(error.BadRecordCount, parsed);
    }
}

test "an offset that is no number is refused" {
    const geometry: Geometry = .{ .page_size = 4096, .lower_bytes = 8, .salt = 1, .lists = false };
    const expected: View.Expected = .{ .page_index = 0, .first_vertex = 0, .record_count = 3 };
    for ([_]f32{ std.math.nan(f32), std.math.inf(f32), -std.math.inf(f32), -7, std.math.floatMax(f32) }) |offset| {
        var bytes: [4096]u8 align(4) = undefined;
        var composer = Composer.init(&bytes, geometry, 0, 0, 3);
        for (0..3) |i| composer.add(no_upper, &@as([8]u8, @splat(1)), if (i == 1) offset else 1, 0, 0, &.{});
        composer.seal();
        const parsed = View.parse(&bytes, geometry, expected);
        if (std.math.isFinite(offset)) _ = try parsed else try std.testing.expectError(error.BadFactors, parsed);
    }
}

test "a table reads back, and one that names its own page, leaves the page or exceeds the index is refused" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    for (0..200) |_| {
        const geometry: Geometry = .{ .page_size = 4096, .lower_bytes = 60, .salt = 1, .lists = random.boolean(), .upper_bytes = 16, .code_bytes = random.uintAtMost(u32, 7) * 8 };
        const n = 100 + random.uintLessThan(u32, 100_000);
        const count = random.uintLessThan(u32, 13) + 1;
        const first = random.uintAtMost(u32, n - count);
        var statistics: page_lists.Codec.Statistics = .init(table_max);
        var given: [table_max]u32 = undefined;
        var len: usize = 0;
        for (0..random.uintAtMost(u32, 40)) |_| {
            const id = random.uintLessThan(u32, n);
            if (id >= first and id < first + count or std.mem.indexOfScalar(u32, given[0..len], id) != null) continue;
            given[len] = id;
            len += 1;
        }
        std.mem.sort(u32, given[0..len], {}, std.sort.asc(u32));
        statistics.count(first, given[0..len]);
        const lists = page_lists.Codec.train(&statistics);
        var codes: [table_max * code_bytes_max]u8 = undefined;
        random.bytes(&codes);
        var encoded: [2048]u8 = undefined;
        const length = lists.encode(first, given[0..len], &encoded);
        var bytes: [4096 + page_lists.over_read_bytes]u8 align(4) = undefined;
        var composer = Composer.init(bytes[0..4096], geometry, 0, first, count);
        for (0..count) |_| composer.add(.{ .code = codes[0..16], .factors = 0, .center = 0 }, codes[0..60], 0, 0, 0, if (geometry.lists) "list" else "");
        if (geometry.code_bytes > 0) composer.add_table(encoded[0..length], codes[0 .. len * geometry.code_bytes]);
        composer.seal();
        const view = try View.parse(bytes[0..4096], geometry, .{ .page_index = 0, .first_vertex = first, .record_count = count });
        var ids: [table_max]u32 = undefined;
        const table = try view.table(&lists, n, &ids);
        try std.testing.expectEqualSlices(u32, if (geometry.code_bytes > 0) given[0..len] else &.{}, table.ids);
        if (table.ids.len == 0) continue;
        try std.testing.expectEqualSlices(u8, codes[0 .. len * geometry.code_bytes], table.codes[0 .. len * geometry.code_bytes]);
        try std.testing.expectError(error.BadTable, view.table(&lists, given[len - 1], &ids));
        var wrong = view;
        wrong.code_bytes = 4096;
        try std.testing.expectError(error.BadTable, wrong.table(&lists, n, &ids));
        wrong = view;
        wrong.page_size = view.adjacency_start + if (geometry.lists) 4 * count else 0;
        try std.testing.expectError(error.BadTable, wrong.table(&lists, n, &ids));
        wrong = view;
        wrong.record_count = n; // a neighbor above the first vertex is on the page
        if (given[len - 1] > first) try std.testing.expectError(error.BadTable, wrong.table(&lists, n, &ids));
        random.bytes(bytes[view.adjacency_start..4096]);
        const damaged = view.table(&lists, n, &ids) catch continue;
        for (damaged.ids, 0..) |id, i| {
            try std.testing.expect(id < n and !view.has(id));
            try std.testing.expect(i == 0 or damaged.ids[i - 1] < id);
        }
    }
}
