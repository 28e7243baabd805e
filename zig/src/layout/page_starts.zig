//! page_starts.bin: the first vertex of every page, as an Elias-Fano sequence: `low_bits` lower bits of each value
//! packed side by side, the upper bits in unary (for each value a 1 after as many 0s as its upper part grew).
//!
//!   OFFSET  SIZE  DESCRIPTION
//!   0       8     magic "VELOSTRT"
//!   8       4     page count p
//!   12      4     vertex count n
//!   16      4     low_bits l
//!   20      4     zero
//!   24      …     lower bits, p * l bits in whole bytes, then upper bits, p + (n >> l) + 1 bits in whole bytes
//!
//! In memory (Directory) the sequence is either unfolded into a page per block of vertices, which finds a vertex's page in
//! one or two steps and takes a quarter of a byte per vertex, or, if nearly all pages have the same number of records, a few
//! runs of such pages.
const std = @import("std");
const base = @import("base");
const records_max = @import("page.zig").records_max;
const assert = std.debug.assert;

pub const magic = "VELOSTRT";
pub const header_bytes = 24;

fn low_bits_of(n: u32, page_count: u32) u5 {
    const gap = n / @max(1, page_count);
    return if (gap < 2) 0 else @intCast(31 - @clz(gap));
}

pub fn encoded_bytes(n: u32, page_count: u32) usize {
    const l = low_bits_of(n, page_count);
    return header_bytes + bytes_for(@as(u64, page_count) * l) + bytes_for(@as(u64, page_count) + (n >> l) + 1);
}

fn bytes_for(bits: u64) usize {
    return @intCast((bits + 7) / 8);
}

pub fn encode(n: u32, starts: []const u32, out: []u8) void {
    const page_count: u32 = @intCast(starts.len);
    assert(out.len == encoded_bytes(n, page_count));
    @memset(out, 0);
    const l = low_bits_of(n, page_count);
    out[0..8].* = magic.*;
    std.mem.writeInt(u32, out[8..12], page_count, .little);
    std.mem.writeInt(u32, out[12..16], n, .little);
    std.mem.writeInt(u32, out[16..20], l, .little);
    const upper_begin = header_bytes + bytes_for(@as(u64, page_count) * l);
    for (starts, 0..) |start, i| {
        for (0..l) |bit| {
            if ((start >> @intCast(bit)) & 1 == 1) set_bit(out[header_bytes..], i * l + bit);
        }
        set_bit(out[upper_begin..], i + (start >> l));
    }
}

fn set_bit(bytes: []u8, index: usize) void {
    bytes[index / 8] |= @as(u8, 1) << @intCast(index % 8);
}

fn get_bit(bytes: []const u8, index: usize) u32 {
    return (bytes[index / 8] >> @intCast(index % 8)) & 1;
}

pub const DecodeError = error{ BadStarts, OutOfMemory };

/// The page of every vertex.
pub const Directory = struct {
    n: u32,
    pages: u32,
    /// Runs of pages with the same number of records, and one of no pages at the end; empty if they would take a large share of
    /// what the other two arrays take, which are empty otherwise.
    runs: []Run,
    starts: []u32, // page_count + 1, the last is n
    block_pages: []u32, // page of the first vertex of each block

    pub const block_size = 16;
    const runs_share = 4;

    const Run = struct { page: u32, vertex: u32, records: u32 };

    pub fn decode(allocator: std.mem.Allocator, bytes: []const u8) DecodeError!Directory {
        if (bytes.len < header_bytes or !std.mem.eql(u8, bytes[0..8], magic)) return error.BadStarts;
        const pages = std.mem.readInt(u32, bytes[8..12], .little);
        const n = std.mem.readInt(u32, bytes[12..16], .little);
        if (pages == 0 or pages > n or n > base.limits.vertices_max) return error.BadStarts;
        const l = low_bits_of(n, pages);
        if (std.mem.readInt(u32, bytes[16..20], .little) != l) return error.BadStarts;
        if (bytes.len != encoded_bytes(n, pages)) return error.BadStarts;
        const starts = try allocator.alloc(u32, pages + 1);
        errdefer allocator.free(starts);
        const upper = bytes[header_bytes + bytes_for(@as(u64, pages) * l) ..];
        var position: usize = 0;
        for (starts[0..pages], 0..) |*start, i| {
            while (position < upper.len * 8 and get_bit(upper, position) == 0) position += 1;
            if (position >= upper.len * 8) return error.BadStarts;
            var low: u32 = 0;
            for (0..l) |bit| low |= get_bit(bytes[header_bytes..], i * l + bit) << @intCast(bit);
            const value = (@as(u64, position - i) << l) | low;
            if (value >= n) return error.BadStarts;
            start.* = @intCast(value);
            if (if (i == 0) value != 0 else start.* <= starts[i - 1]) return error.BadStarts;
            position += 1;
        }
        starts[pages] = n;
        // Callers that score a page have room for this many records.
        for (starts[0..pages], starts[1..]) |start, end| if (end - start > records_max) return error.BadStarts;
        const blocks = (n + block_size - 1) / block_size;
        const runs_max = (starts.len + blocks) * @sizeOf(u32) / @sizeOf(Run) / runs_share;
        if (try runs_of(allocator, starts, runs_max)) |runs| {
            allocator.free(starts);
            return .{ .n = n, .pages = pages, .runs = runs, .starts = &.{}, .block_pages = &.{} };
        }
        const block_pages = try allocator.alloc(u32, blocks);
        var page: u32 = 0;
        for (block_pages, 0..) |*block_page, block| {
            while (starts[page + 1] <= block * block_size) page += 1;
            block_page.* = page;
        }
        return .{ .n = n, .pages = pages, .runs = &.{}, .starts = starts, .block_pages = block_pages };
    }

    /// Null if there are more than `most`.
    fn runs_of(allocator: std.mem.Allocator, starts: []const u32, most: usize) error{OutOfMemory}!?[]Run {
        var runs: std.ArrayList(Run) = .empty;
        defer runs.deinit(allocator);
        for (starts[0 .. starts.len - 1], starts[1..], 0..) |start_of, end, page| {
            if (runs.items.len > 0 and runs.items[runs.items.len - 1].records == end - start_of) continue;
            if (runs.items.len + 2 > most) return null;
            try runs.append(allocator, .{ .page = @intCast(page), .vertex = start_of, .records = end - start_of });
        }
        try runs.append(allocator, .{ .page = @intCast(starts.len - 1), .vertex = starts[starts.len - 1], .records = 1 });
        return try runs.toOwnedSlice(allocator);
    }

    pub fn deinit(self: *Directory, allocator: std.mem.Allocator) void {
        allocator.free(self.runs);
        allocator.free(self.starts);
        allocator.free(self.block_pages);
    }

    pub inline fn page_count(self: *const Directory) u32 {
        return self.pages;
    }

    /// The first vertex of a page; of the page after the last one n.
    pub inline fn first_vertex(self: *const Directory, page: u32) u32 {
        assert(page <= self.pages);
        if (self.runs.len == 0) return self.starts[page];
        const run = self.run_with("page", page);
        return run.vertex + (page - run.page) * run.records;
    }

    pub inline fn page_of(self: *const Directory, vertex: u32) u32 {
        assert(vertex < self.n);
        if (self.runs.len > 0) {
            const run = self.run_with("vertex", vertex);
            return run.page + (vertex - run.vertex) / run.records;
        }
        var page = self.block_pages[vertex / block_size];
        while (self.starts[page + 1] <= vertex) page += 1;
        return page;
    }

    /// The last run that begins at or before a page or a vertex.
    fn run_with(self: *const Directory, comptime begin: []const u8, wanted: u32) *const Run {
        var from: usize = 0;
        var to = self.runs.len;
        while (to - from > 1) {
            const middle = from + (to - from) / 2;
            if (@field(self.runs[middle], begin) <= wanted) from = middle else to = middle;
        }
        return &self.runs[from];
    }

    pub inline fn record_count(self: *const Directory, page: u32) u32 {
        return self.first_vertex(page + 1) - self.first_vertex(page);
    }

    pub fn memory_bytes(self: *const Directory) u64 {
        return (self.starts.len + self.block_pages.len) * @sizeOf(u32) + self.runs.len * @sizeOf(Run);
    }
};

test "every vertex finds its page, for many shapes" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    const allocator = std.testing.allocator;
    for ([_]u32{ 1, 1, 2, 3, 30, 100 }) |most| {
        for (0..20) |_| {
            var starts: std.ArrayList(u32) = .empty;
            defer starts.deinit(allocator);
            var n: u32 = 0;
            for (0..random.uintAtMost(u32, 200) + 1) |_| {
                try starts.append(allocator, n);
                n += random.uintLessThan(u32, most) + 1;
            }
            const bytes = try allocator.alloc(u8, encoded_bytes(n, @intCast(starts.items.len)));
            defer allocator.free(bytes);
            encode(n, starts.items, bytes);
            var directory = try Directory.decode(allocator, bytes);
            defer directory.deinit(allocator);
            try std.testing.expectEqual(starts.items.len, directory.page_count());
            for (0..n) |v| {
                const page = directory.page_of(@intCast(v));
                try std.testing.expect(directory.first_vertex(page) <= v and v < directory.first_vertex(page + 1));
            }
            for (starts.items, 0..) |start, page| try std.testing.expectEqual(start, directory.first_vertex(@intCast(page)));
            if (n > 1) try std.testing.expectError(error.BadStarts, Directory.decode(allocator, bytes[0 .. bytes.len - 1]));
        }
    }
}

test "pages of the same number of records take next to no memory, with a few others among them" {
    const allocator = std.testing.allocator;
    for ([_]u32{ 0, 1, 20, 999 }) |others| {
        var starts: [1000]u32 = undefined;
        var n: u32 = 0;
        for (&starts, 0..) |*start, page| {
            start.* = n;
            n += if (page % 1000 < others) 5 + @as(u32, @intCast(page % 2)) else 13;
        }
        const bytes = try allocator.alloc(u8, encoded_bytes(n, starts.len));
        defer allocator.free(bytes);
        encode(n, &starts, bytes);
        var directory = try Directory.decode(allocator, bytes);
        defer directory.deinit(allocator);
        try std.testing.expectEqual(others < 999, directory.runs.len > 0);
        try std.testing.expect(directory.memory_bytes() <= if (others < 999) 12 * (others + 2) else 8000);
        try std.testing.expectEqual(n, directory.first_vertex(1000));
        for (starts, 0..) |start, page| {
            try std.testing.expectEqual(start, directory.first_vertex(@intCast(page)));
            try std.testing.expectEqual(page, directory.page_of(start));
            if (start > 0) try std.testing.expectEqual(page - 1, directory.page_of(start - 1));
        }
    }
}

test "a page of more records than a search has room for is refused" {
    const allocator = std.testing.allocator;
    for ([_]u32{ records_max, records_max + 1 }) |count| {
        for ([_]u32{ 0, 1, 2 }) |long_page| {
            // Three pages of 5 records, one of them long.
            var starts: [3]u32 = undefined;
            var n: u32 = 0;
            for (&starts, 0..) |*start, i| {
                start.* = n;
                n += if (i == long_page) count else 5;
            }
            const bytes = try allocator.alloc(u8, encoded_bytes(n, starts.len));
            defer allocator.free(bytes);
            encode(n, &starts, bytes);
            var directory = Directory.decode(allocator, bytes) catch |err| {
                try std.testing.expectEqual(error.BadStarts, err);
                try std.testing.expect(count > records_max);
                continue;
            };
            defer directory.deinit(allocator);
            try std.testing.expectEqual(records_max, count);
        }
    }
}

test "damaged sequences are refused, never read past" {
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = std.Random.DefaultPrng.init(seed);
    const random = prng.random();
    const allocator = std.testing.allocator;
    var starts: [50]u32 = undefined;
    for (&starts, 0..) |*start, i| start.* = @intCast(i * 29);
    var bytes: [256]u8 = undefined;
    const size = encoded_bytes(50 * 29, 50);
    for (0..2000) |_| {
        encode(50 * 29, &starts, bytes[0..size]);
        for (0..random.uintAtMost(u32, 4) + 1) |_| bytes[random.uintLessThan(usize, size)] = random.int(u8);
        var directory = Directory.decode(allocator, bytes[0..size]) catch continue;
        directory.deinit(allocator);
    }
}
